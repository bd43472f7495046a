"""Lightning Fabric: what it sets up, as a wrapper and as an engine."""

import pytest

import conformance

pytest.importorskip("lightning_fabric")
CLAIMS = conformance.Claims(unused="never", shards_state=False)  # DDP is inside, without find_unused_parameters=True
REFUSE = ("lightning_fabric", "torch.nn.parallel")

test_wrapped = conformance.verify(
    wrap="on_fabric:wrap", claims=CLAIMS, known_failures="known/fabric.txt", libraries=REFUSE
)
test_engine = conformance.verify(
    engine="on_fabric:Engine", claims=CLAIMS, known_failures="known/fabric_engine.txt", libraries=REFUSE
)
