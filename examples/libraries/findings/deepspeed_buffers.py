"""DeepSpeed leaves each rank its own buffers: only parameters are made equal."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
import deepspeed, torch, torch.distributed as dist, torch.multiprocessing as mp

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True}


def main(rank):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29573", rank=rank, world_size=2)
    model = torch.nn.Linear(1, 1)
    model.register_buffer("offset", torch.tensor(float(rank)))
    deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=CONFIG)
    seen = model.offset.item()
    print(f"rank {rank}: the buffer is {seen}, on rank 0 it was 0.0: {'right' if seen == 0 else 'wrong'}")


if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
