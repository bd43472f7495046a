"""`step`: what sharding costs, in time and in communicated bytes."""

import pytest
from subgroups import subgroups_destroyed

from pytest_ddp import DDPContext, distributed
from pytest_ddp.observed import Entry
from reference.bench import step, step_volume
from reference.bench.contestants import Workload, batch, size_of
from reference.bench.result import Raw
from reference.bench.strategies import strategies
from reference.bench.transformer_costs import parameters

WORKLOAD = Workload("64x1", samples=1, words=8, bucket_mb=25.0)
ELEMENTS = parameters(*size_of("64x1"))


def raw() -> Raw:
    workload = {"model": "64x1", "samples": 1, "words": 8, "bucket_mb": 25.0, "submission": None}
    whole = 4 * ELEMENTS
    traffic = {
        "ddp": {"all_reduce": {"count": 2, "bytes": whole}},
        "zero1": {"all_reduce": {"count": 2, "bytes": whole}, "broadcast": {"count": 2, "bytes": whole}},
        "fsdp": {"all_gather": {"count": 9, "bytes": 2 * whole}, "reduce_scatter": {"count": 5, "bytes": whole}},
    }
    seconds = {"ddp": [1.0, 2.0, 4.0], "zero1": [1.5, 3.0, 6.0], "fsdp": [1.0, 4.0, 8.0]}
    measured = {"seconds": seconds, "traffic": traffic}
    return {"workload": workload, "world_size": 2, "backend": "gloo", "device": "cpu", **measured}


def test_bytes_are_those_of_whole_tensors() -> None:
    entries = [
        Entry("all_gather_into_tensor", "0", (0, 1), bytes=100),  # a part of 200
        Entry("reduce_scatter_tensor", "0", (0, 1), bytes=200),
        Entry("all_reduce", "0", (0, 1), bytes=50),
        Entry("all_reduce_coalesced", "0", (0, 1), bytes=8),
        Entry("monitored_barrier", "0", (0, 1)),
    ]
    assert step_volume.by_kind(entries, world_size=2) == {
        "all_gather": {"count": 1, "bytes": 200},
        "reduce_scatter": {"count": 1, "bytes": 200},
        "all_reduce": {"count": 2, "bytes": 58},
        "barrier": {"count": 1, "bytes": 0},
    }


def test_the_table_has_ratios_within_a_round_and_the_volumes_of_the_formulas() -> None:
    result = step.evaluate(raw())
    rows = {row[0]: row for row in result.rows}
    assert rows["zero1"][4:7] == [1.5, 1.5, 1.5]
    assert rows["fsdp"][4:7] == [2.0, 1.5, 2.0]
    sent = 4 * ELEMENTS / 2 / 1e6  # (W - 1) / W of all parameters
    for name, times in (("ddp", 2), ("zero1", 3), ("fsdp", 3)):
        assert rows[name][8:] == [pytest.approx(times * sent), pytest.approx(times * sent), pytest.approx(0)]
    assert rows[step_volume.IN_PAPER][9] == pytest.approx(2 * sent)
    assert result.sentences[0] == (
        "Beside ddp, a step takes this many times as long: 1.50 with zero1 (quartiles 1.50 to 1.50), 2.00 with fsdp "
        "(quartiles 1.50 to 2.00)."
    )
    assert result.sentences[1] == (
        "Measured twice, in every other round, the ratios to ddp differ by at most 33%, so smaller differences mean "
        "nothing."
    )
    assert "gloo runs a reduce-scatter as an all-reduce, so fsdp sends more" in result.sentences[3]


def test_operations_without_a_formula_are_counted_and_named() -> None:
    found, name = raw(), "zero1 (submission)"
    found["seconds"][name] = [1.0, 2.0, 4.0]
    found["traffic"][name] = {
        "reduce": {"count": 3, "bytes": 4_000_000},
        "barrier": {"count": 1, "bytes": 0},
        "broadcast": {"count": 2, "bytes": 4 * ELEMENTS},
    }
    result = step.evaluate(found)
    row = next(row for row in result.rows if row[0] == name)
    assert row[7:9] == [6, pytest.approx(4 * ELEMENTS / 2 / 1e6)]
    assert (
        f"{name} also calls reduce 3 times with 4.00 MB of tensors: no formula counts them in what is sent."
        in result.sentences
    )
    assert len(result.sentences) == len(step.evaluate(raw()).sentences) + 1


@distributed(world_size=2, observe=True)
@pytest.mark.parametrize("name", ["ddp", "zero1", "fsdp"])
def test_the_measured_volume_is_that_of_the_formula(name: str, ddp: DDPContext) -> None:
    with subgroups_destroyed():
        traffic = step_volume.count_step(strategies(WORKLOAD)[name], batch(WORKLOAD), ddp.collectives)
    found = {**raw(), "traffic": {name: traffic}}
    assert sum(step_volume.measured_bytes(found, name).values()) == pytest.approx(
        sum(step_volume.formula_bytes(found, name).values()), rel=0.01
    )


def test_the_picture_has_times_and_stacks_of_collectives() -> None:
    pytest.importorskip("matplotlib")
    [times, volumes] = step.draw(raw())["step"].axes
    assert (times.get_ylabel(), volumes.get_ylabel()) == ("time (ms)", "sent (MB)")
    assert [bar.get_height() for bar in times.patches] == [2000, 3000, 4000]
    assert len(volumes.patches) == 2 * (1 + 2 + 2) + 2  # measured and formula, and the paper's stage 1
    assert [label.get_text() for label in volumes.get_xticklabels()][-1] == "zero1\nin the paper"
    assert {text.get_text() for text in volumes.get_legend().get_texts()} == {
        *("all-reduce", "broadcast", "all-gather", "reduce-scatter")
    }
