"""Records which of torch's own implementations a submission uses."""

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
    """Yield a set that receives the name of each of torch's implementations that the block makes an object of.

    Only modules that are imported already are watched: importing all of them takes longer than most scenarios.
    """
    used = set[str]()
    with ExitStack() as patches:
        for (module, name), words in _OWN.items():
            found = getattr(sys.modules.get(module), name, None)
            if found is not None:
                patches.enter_context(patch.object(found, "__init__", _recording(found.__init__, used, words)))
        yield used


def _recording(make: Any, used: set[str], words: str) -> Any:
    def init(self: Any, *args: Any, **keywords: Any) -> None:
        used.add(words)
        make(self, *args, **keywords)

    return init
