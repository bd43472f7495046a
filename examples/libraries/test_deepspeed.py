"""deepspeed."""

import pytest

import conformance

pytest.importorskip("deepspeed")
CLAIMS = conformance.Claims(dtypes=("float32", "bfloat16"), unused="never")

test_stage_1 = conformance.verify(
    engine="on_deepspeed:Engine", claims=CLAIMS, known_failures="known/deepspeed_1.txt", libraries=("deepspeed",)
)
test_stage_2 = conformance.verify(
    engine="on_deepspeed:Stage2", claims=CLAIMS, known_failures="known/deepspeed_2.txt", libraries=("deepspeed",)
)
