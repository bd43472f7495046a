"""accelerate."""

import pytest

import conformance

pytest.importorskip("accelerate")
CLAIMS = conformance.Claims(unused="never")

test_wrapped = conformance.verify(
    wrap="on_accelerate:wrap", claims=CLAIMS, known_failures="known/accelerate.txt", libraries=("accelerate", "torch.nn.parallel")
)
test_engine = conformance.verify(
    engine="on_accelerate:Engine", claims=CLAIMS, known_failures="known/accelerate_engine.txt", libraries=("accelerate", "torch.nn.parallel")
)
