"""DeepSpeed: its engine with ZeRO stage 2."""

import pytest

import conformance

pytest.importorskip("deepspeed")
CLAIMS = conformance.Claims(dtypes=("float32",), unused="never")

test_stage_2 = conformance.verify(
    engine="on_deepspeed:Engine", claims=CLAIMS, known_failures="known/deepspeed.txt", libraries=("deepspeed",)
)
