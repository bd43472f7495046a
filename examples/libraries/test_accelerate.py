"""Hugging Face accelerate: what it prepares, as a wrapper and as an engine."""

import pytest

import conformance

pytest.importorskip("accelerate")
CLAIMS = conformance.Claims(unused="never", shards_state=False)  # DDP is inside, without find_unused_parameters=True
REFUSE = ("accelerate", "torch.nn.parallel")

test_wrapped = conformance.verify(
    wrap="on_accelerate:wrap", claims=CLAIMS, known_failures="known/accelerate.txt", libraries=REFUSE
)
test_engine = conformance.verify(
    engine="on_accelerate:Engine", claims=CLAIMS, known_failures="known/accelerate_engine.txt", libraries=REFUSE
)
