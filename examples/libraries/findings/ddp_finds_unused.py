"""DDP with find_unused_parameters=True raises for outputs in an object, and for a layer that is checkpointed twice."""

import os, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class InAnObject(torch.nn.Linear):
    def forward(self, inputs):
        return type("Outputs", (), {"out": super().forward(inputs)})


class Twice(torch.nn.Sequential):
    def forward(self, inputs):
        inputs = checkpoint(self[0], inputs, use_reentrant=True)
        return type("Outputs", (), {"out": checkpoint(self[0], inputs, use_reentrant=True)})


def main(rank, model, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    try:
        wrapped(torch.ones(1, 1, requires_grad=True)).out.sum().backward()
    except RuntimeError as error:
        os.write(1, f"rank {rank}, {type(model).__name__}: wrong: {str(error).partition('.')[0]}\n".encode())
        os._exit(0)  # threads of reentrant passes that raised end the process with SIGABRT


if __name__ == "__main__":
    [mp.spawn(main, given, nprocs=2) for given in ((InAnObject(1, 1), 29541), (Twice(torch.nn.Linear(1, 1)), 29542))]
