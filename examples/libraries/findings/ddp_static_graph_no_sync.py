"""DDP with static_graph=True fails if its first backward pass is under `no_sync`."""

import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


def main(rank):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29537", rank=rank, world_size=2)
    wrapped = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False), static_graph=True)
    try:
        with wrapped.no_sync():
            wrapped(torch.ones(1, 1)).sum().backward()
        wrapped(torch.ones(1, 1)).sum().backward()
        print(f"rank {rank}: right")
    except RuntimeError as error:
        print(f"rank {rank}: wrong: {str(error)[:60]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
