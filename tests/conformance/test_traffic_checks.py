"""What is sent is counted in collectives and in bytes: rightly unusual ways to average pass, and waste is told."""

from collections.abc import Sequence

import pytest
import torch

from conformance.checks.check import Violation
from conformance.checks.traffic import sent_once
from conformance.checks.trial import Trial
from conformance.components.wrapper.collectives import (
    freezing,
    one_collective_per_dtype,
    one_collective_per_parameter,
)
from conformance.protocol.messages import Happening, Observation
from conformance.scenarios.layers import Linear
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import Freeze, Scenario

FOUR = ModelSpec(inputs=32, layers=(Linear(32, bias=False),) * 4)  # four weights of 8 KiB
MIXED = ModelSpec(inputs=4, layers=(Linear(4, bias=False), Linear(4, bias=False, dtype="float32")))
EACH, ALL = 32 * 32 * 8, 4 * 32 * 32 * 8


def sent(op: str, size: int = EACH, dtype: str = "float64", group: str = "0") -> Happening:
    return Happening("launched", op=op, bytes=size, dtype=dtype, group=group)


def trial(*happened: Happening, model: ModelSpec = FOUR, forward: Sequence[Happening] = (), **options) -> Trial:
    seen = Observation({"x": torch.zeros(1)}, happenings=[[*forward, Happening("began"), *happened]])
    return Trial(Scenario(model=model, world_size=2, **options), 0, (seen,))


PER_PARAMETER = [sent("all_reduce")] * 4
FLAGS = sent("all_reduce", 4 * 8)


SENT_ONCE = {
    "each": PER_PARAMETER,
    "with flags": [sent("all_reduce", ALL), FLAGS],
    "with counts": [*PER_PARAMETER, sent("all_reduce", 40, "int32")],
    "aligned": [sent("all_reduce", ALL + 4 * 512)],
    "from a root and to it": [sent("reduce"), sent("broadcast")] * 4,
    "scattered": [sent("reduce_scatter_tensor", EACH + 8), sent("all_gather_into_tensor", EACH // 2)] * 4,
    "scattered, aligned": [sent("reduce_scatter_tensor", EACH + 1024), sent("all_gather_into_tensor", EACH // 2)] * 4,
    "all to all": [sent("all_to_all_single", EACH + 8), sent("all_gather_into_tensor", EACH // 2)] * 4,
    "ring": [sent("send", ALL)] * 6 + [sent("recv", ALL)] * 6,
    "gathered and scattered": [sent("gather", ALL), sent("scatter", 2 * ALL)],
    "two levels": [sent("all_reduce", ALL, group="pair"), sent("all_reduce", ALL, group="firsts")],
}


@pytest.mark.parametrize("happened", SENT_ONCE.values(), ids=SENT_ONCE)
def test_every_way_to_send_all_once_passes(happened):
    sent_once(trial(*happened))
    sent_once(trial(*happened, replicated=True))


@pytest.mark.parametrize(
    "happened",
    [
        PER_PARAMETER * 2,
        [*PER_PARAMETER, sent("all_reduce", ALL)],
        [sent("broadcast", ALL)] * 2,
        [sent("reduce_scatter_tensor")] * 8,
    ],
    ids=["each twice", "all once more", "all twice", "scattered twice"],
)
def test_what_is_sent_again_is_told_with_its_bytes(happened):
    with pytest.raises(Violation, match=r"65536 bytes, 2 times the 32768 bytes of all the gradients\.$") as told:
        sent_once(trial(*happened))
    assert "On rank 0 at step 1 of 1" in told.value.message
    assert "send each gradient once" in told.value.advice


@pytest.mark.parametrize("dtype", ["float64", "uint8"])
def test_parameters_that_are_sent_before_backward_are_told(dtype):
    with pytest.raises(
        Violation, match="32768 bytes were sent before backward, by 4 x `broadcast`; expected noth"
    ) as told:
        sent_once(trial(*PER_PARAMETER, forward=[sent("broadcast", dtype=dtype)] * 4))
    assert "once, when wrapping" in told.value.advice


def test_what_ranks_agree_by_before_backward_passes():
    names = sent("all_gather", 300, "uint8")
    sent_once(trial(*PER_PARAMETER, forward=[names, FLAGS]))


def test_one_parameter_that_is_sent_again_is_told():
    with pytest.raises(Violation, match=r"5 x all_reduce carried 40960 bytes, 1\.2 times the 32768 bytes of all the g"):
        sent_once(trial(*PER_PARAMETER, sent("all_reduce")))


def test_a_step_that_sends_parameters_again_is_told():
    with pytest.raises(Violation, match=r"8 x broadcast carried 65536 bytes, 2 times the 32768 bytes of all the p"):
        sent_once(trial(*[sent("broadcast")] * 8, replicated=True))


def test_gradients_that_travel_together_are_not_one_each():
    one_collective_per_parameter(trial(*PER_PARAMETER))
    one_collective_per_parameter(trial(*[sent("send"), sent("recv")] * 12))
    with pytest.raises(Violation, match="2 collectives were launched for 4 parameters; expected one each"):
        one_collective_per_parameter(trial(*[sent("all_reduce", 2 * EACH)] * 2))


def test_gradients_that_travel_as_bytes_are_counted():
    as_bytes = sent("all_gather", EACH, "uint8")
    one_collective_per_parameter(trial(*[as_bytes] * 4))
    one_collective_per_dtype(trial(sent("all_gather", ALL, "uint8")))
    with pytest.raises(Violation, match="4 collectives were launched for 4 parameters of one dtype; expected one"):
        one_collective_per_dtype(trial(*[as_bytes] * 4))


def test_bytes_beside_gradients_are_not_counted():
    flags = sent("all_reduce", 4, "uint8")
    one_collective_per_dtype(trial(flags, sent("all_reduce", ALL), flags))


def test_one_collective_for_each_dtype_or_one_for_both():
    wide, narrow = sent("all_reduce"), sent("all_reduce", EACH // 2, "float32")
    one_collective_per_dtype(trial(wide, narrow, model=MIXED))
    one_collective_per_dtype(trial(wide, model=MIXED))
    one_collective_per_dtype(trial(sent("reduce"), sent("broadcast"), narrow, model=MIXED))
    with pytest.raises(Violation, match="3 collectives were launched for 2 parameters of 2 dtypes; expected at most 2"):
        one_collective_per_dtype(trial(wide, wide, narrow, model=MIXED))
    with pytest.raises(Violation, match="no gradient was communicated at all"):
        one_collective_per_dtype(trial(model=MIXED))


def test_nothing_is_sent_where_everything_is_frozen():
    with pytest.raises(Violation, match="every parameter is frozen, and still there was something to send: `all_reduc"):
        freezing(trial(sent("all_reduce"), schedule=(Freeze(0, tuple(FOUR.shapes)),)))
