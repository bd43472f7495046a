"""A program: one rank trains with all that can hold on to its process group, leaves it, and counts gloo's threads."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import AdamW

from reference.communication.process_group import cleanup, setup
from reference.fsdp.fsdp import FSDP
from reference.training.options import WRAPPERS
from reference.zero1.sharded_optimizer import ShardedOptimizer


def threads_of_gloo() -> int:
    """How many threads of this process work off collectives, as Linux names them."""
    names = [task.joinpath("comm").read_text() for task in Path("/proc/self/task").iterdir()]
    return sum("gloo_runloop" in name for name in names)


def train_and_drop(name: str) -> None:
    """One step; a cycle of Python references is left behind, as bound methods on an instance make them."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    module.forward = module.forward  # type: ignore[method-assign]
    model = WRAPPERS[name](module)
    optimizer = AdamW(model.parameters()) if isinstance(model, FSDP) else ShardedOptimizer(model.parameters(), AdamW)
    model(torch.ones(2, 4)).sum().backward()
    if name != "torch":
        model.finish_gradient_synchronization()  # type: ignore[operator]
    optimizer.step()


if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    setup("gloo", rank=0, world_size=1)
    for wrapper in WRAPPERS:
        train_and_drop(wrapper)
    before = threads_of_gloo()
    cleanup()
    print(before, threads_of_gloo())
