"""DeepSpeed, ZeRO stage 2: of two backward passes before a step, the last one alone counts."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
import deepspeed, torch, torch.distributed as dist, torch.multiprocessing as mp

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True}


def main(rank):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29572", rank=rank, world_size=2)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer, config = torch.optim.SGD(model.parameters(), lr=1.0), {**CONFIG, "gradient_clipping": 0.0}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for factor in (1.0, 10.0):
        engine.backward(engine(torch.full((1, 1), factor)).sum())
    engine.step()
    seen = model.weight.item()
    print(f"rank {rank}: {seen} after a step with gradients 1 and 10: {'right' if seen == -11 else 'wrong'}")


if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
