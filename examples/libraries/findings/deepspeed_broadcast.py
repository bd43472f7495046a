"""DeepSpeed broadcasts parameters as bytes, which raises for transposed, channels-last and 0-dimensional ones."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
import deepspeed, torch, torch.distributed as dist, torch.multiprocessing as mp

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True}


def main(rank):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29571", rank=rank, world_size=2)
    weight = torch.nn.Parameter(torch.ones(2, 3).T)
    scale = torch.nn.Parameter(torch.ones(()))
    kernel = torch.nn.Parameter(torch.ones(1, 2, 3, 3).to(memory_format=torch.channels_last))
    for name, parameter in (("transposed", weight), ("channels-last", kernel), ("0-dimensional", scale)):
        model = torch.nn.ParameterList([parameter])
        try:
            deepspeed.initialize(model=model, optimizer=torch.optim.SGD([parameter], lr=0.1), config=CONFIG)
            print(f"rank {rank}: {name}: right")
        except RuntimeError as error:
            print(f"rank {rank}: {name}: wrong: {error}")


if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
