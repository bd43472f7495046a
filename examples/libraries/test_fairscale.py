"""fairscale: OSS, and ShardedDataParallel with OSS."""

import pytest

import conformance

pytest.importorskip("fairscale")
test_oss = conformance.verify(sharded="on_fairscale:sharded", known_failures="known/oss.txt", libraries=("fairscale",))
test_sharded_ddp = conformance.verify(
    engine="on_fairscale:Engine", known_failures="known/sharded_ddp.txt", libraries=("fairscale",)
)
