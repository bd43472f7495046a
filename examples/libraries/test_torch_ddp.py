"""torch's DistributedDataParallel: plain, and with its options."""

import conformance

OF_DDP = ("torch.nn.parallel",)  # its exceptions are refusals
SENDS_ALL = conformance.Claims(unused="never")

test_plain = conformance.verify(
    wrap="torch_ddp:plain", claims=SENDS_ALL, known_failures="known/ddp.txt", libraries=OF_DDP
)
test_static_graph = conformance.verify(
    wrap="torch_ddp:static_graph",
    claims=conformance.Claims(unused="in_all_steps"),
    known_failures="known/ddp_static_graph.txt",
    libraries=OF_DDP,
)
test_as_bucket_view = conformance.verify(
    wrap="torch_ddp:as_bucket_view",
    claims=SENDS_ALL,
    known_failures="known/ddp_as_bucket_view.txt",
    libraries=OF_DDP,
)
test_finds_unused = conformance.verify(
    wrap="torch_ddp:finds_unused", known_failures="known/ddp_finds_unused.txt", libraries=OF_DDP
)
