"""DeepSpeed cannot broadcast a parameter that is stored transposed: it raises an exception of torch's."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
import deepspeed, torch, torch.distributed as dist, torch.multiprocessing as mp

CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True}


def main(rank):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29538", rank=rank, world_size=2)
    model = torch.nn.Linear(2, 3, bias=False)
    model.weight = torch.nn.Parameter(torch.ones(2, 3).T)
    try:
        deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=CONFIG)
        print(f"rank {rank}: right")
    except RuntimeError as error:
        print(f"rank {rank}: wrong: {error}")


if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
