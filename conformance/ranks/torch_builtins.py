"""Notices which of torch's own implementations a submission uses, on a rank."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

_OWN = {
    ("torch.nn.parallel.distributed", "DistributedDataParallel"): "torch.nn.parallel.DistributedDataParallel",
    ("torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer"): (
        "torch.distributed.optim.ZeroRedundancyOptimizer"
    ),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"): (
        "torch.distributed.fsdp.FullyShardedDataParallel"
    ),
    ("torch.distributed.fsdp._fully_shard._fsdp_state", "FSDPState"): "torch.distributed.fsdp.fully_shard",
    ("torch.nn.modules.batchnorm", "SyncBatchNorm"): "torch.nn.SyncBatchNorm",
    ("torch.utils.data.distributed", "DistributedSampler"): "torch.utils.data.DistributedSampler",
}


@contextmanager
def noticing() -> Iterator[set[str]]:
    """Give a set to which each of torch's classes is added that an object is made of in the block.

    Only what is imported by now is watched: importing all of it takes longer than most scenarios.
    """
    used = set[str]()
    with ExitStack() as patches:
        for (module, name), words in _OWN.items():
            found = getattr(sys.modules.get(module), name, None)
            if found is not None:
                patches.enter_context(patch.object(found, "__init__", _telling(found.__init__, used, words)))
        yield used


def _telling(make: Any, used: set[str], words: str) -> Any:
    def init(self: Any, *args: Any, **keywords: Any) -> None:
        used.add(words)
        make(self, *args, **keywords)

    return init
