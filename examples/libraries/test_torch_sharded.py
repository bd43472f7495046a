"""torch's ZeroRedundancyOptimizer, alone and together with DDP, and `fully_shard`."""

import conformance

test_zero = conformance.verify(
    wrap="torch_ddp:find_unused",
    sharded="torch_sharded:zero",
    known_failures="known/zero.txt",
    libraries=("torch.nn.parallel", "torch.distributed.optim"),
)
test_zero_in_buckets = conformance.verify(
    wrap="torch_ddp:find_unused",
    sharded="torch_sharded:zero_in_buckets",
    known_failures="known/zero_in_buckets.txt",
    libraries=("torch.nn.parallel", "torch.distributed.optim"),
)
test_fsdp2 = conformance.verify(
    fsdp="torch_sharded:fsdp2",
    full_parameters="torch_sharded:full_parameters",
    known_failures="known/fsdp2.txt",
    libraries=("torch.distributed.fsdp",),
)
