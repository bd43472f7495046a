"""torch's DistributedDataParallel: plain, and with a static graph."""

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
