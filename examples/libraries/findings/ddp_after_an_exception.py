"""DDP cannot train any more after a backward pass that raised on all ranks, and `zero_grad`."""

import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


def refuse(grad):
    raise ArithmeticError


def main(rank):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29562", rank=rank, world_size=2)
    first, last = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    wrapped = DistributedDataParallel(torch.nn.Sequential(first, last))
    handle = last.register_forward_pre_hook(lambda _, given: given[0].register_hook(refuse) and None)
    try:
        wrapped(torch.ones(1, 2)).sum().backward()
    except ArithmeticError:
        handle.remove()
        wrapped.zero_grad()
    try:
        wrapped(torch.ones(1, 2)).sum().backward()
        print(f"rank {rank}: right")
    except RuntimeError as error:
        print(f"rank {rank}: wrong: {str(error)[:60]}")


if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
