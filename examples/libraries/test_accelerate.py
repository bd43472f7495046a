"""Hugging Face accelerate: a module and an optimizer that it prepares."""

import pytest

import conformance

pytest.importorskip("accelerate")

test_engine = conformance.verify(
    engine="on_accelerate:Engine",
    claims=conformance.Claims(unused="never", shards_state=False),  # DDP is inside, without find_unused_parameters=True
    known_failures="known/accelerate.txt",
    libraries=("accelerate", "torch.nn.parallel"),
)
