"""fabric."""

import pytest

import conformance

pytest.importorskip("lightning_fabric")
CLAIMS = conformance.Claims(unused="never")

test_wrapped = conformance.verify(
    wrap="on_fabric:wrap", claims=CLAIMS, known_failures="known/fabric.txt", libraries=("lightning_fabric", "torch.nn.parallel")
)
test_engine = conformance.verify(
    engine="on_fabric:Engine", claims=CLAIMS, known_failures="known/fabric_engine.txt", libraries=("lightning_fabric", "torch.nn.parallel")
)
