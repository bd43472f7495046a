"""Lightning Fabric: a module and an optimizer that it sets up."""

import pytest

import conformance

pytest.importorskip("lightning_fabric")

test_engine = conformance.verify(
    engine="on_fabric:Engine",
    claims=conformance.Claims(unused="never", shards_state=False),  # DDP is inside, without find_unused_parameters=True
    known_failures="known/fabric.txt",
    libraries=("lightning_fabric", "torch.nn.parallel"),
)
