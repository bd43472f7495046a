"""torch's ZeroRedundancyOptimizer, also together with DDP, and `fully_shard`."""

import conformance

test_zero = conformance.verify(
    wrap="torch_ddp:plain",
    sharded="torch_sharded:zero",
    claims=conformance.Claims(unused="never"),  # DDP without find_unused_parameters=True
    known_failures="known/zero.txt",
    libraries=("torch.nn.parallel", "torch.distributed.optim"),
)
test_fsdp2 = conformance.verify(
    fsdp="torch_sharded:fsdp2",
    full_parameters="torch_sharded:full_parameters",
    known_failures="known/fsdp2.txt",
    libraries=("torch.distributed.fsdp",),
)
