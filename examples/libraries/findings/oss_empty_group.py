"""fairscale's OSS cannot step if its first parameter group is empty, which torch's optimizers allow."""

import torch, torch.distributed as dist, torch.multiprocessing as mp
from fairscale.optim import OSS


def main(rank):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29563", rank=rank, world_size=2)
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = OSS([{"params": []}, {"params": params}], torch.optim.SGD, lr=0.1)
    for p in params:
        p.grad = torch.ones(2)
    try:
        optimizer.step()
        print(f"rank {rank}: right")
    except IndexError as error:
        print(f"rank {rank}: wrong: IndexError: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
