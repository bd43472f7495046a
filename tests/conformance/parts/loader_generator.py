"""A right generator."""

import torch
import torch.distributed as dist


def get_ddp_generator(seed):
    generator = torch.Generator()
    generator.manual_seed(seed + dist.get_rank())
    return generator
