"""`trace`: a step of each training on real ranks, its files and pictures."""

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ddp import DDPContext, distributed
from reference.bench import trace, traced_steps
from reference.bench.contestants import Workload, batch, contestant
from reference.bench.ranks import on_ranks
from reference.bench.result import Raw

WORKLOAD = Workload("64x1", samples=1, words=8, bucket_mb=0.1)


@distributed(world_size=2, observe=True)
@pytest.mark.parametrize("name", ["naive", "bucketed", "torch"])
def test_profiler_and_record_agree_about_a_step(name: str, ddp: DDPContext) -> None:
    folder = ddp.shared_path
    steps = traced_steps.trace_training(
        lambda: contestant(name, WORKLOAD), batch(WORKLOAD), ddp.collectives, folder, name
    )
    assert len(steps) == 2
    assert all(step.agree for step in steps)
    assert [phase.name for phase in steps[0].phases] == ["forward", "backward", "exchange", "optimizer"]
    assert min(step.phases[0].start for step in steps) == 0
    assert len({len(step.observed) for step in steps}) == 1
    if ddp.rank == 0:
        for kind in ("profiler", "observed"):
            events = json.loads((folder / f"trace-{name}.{kind}.json").read_text())["traceEvents"]
            assert {event["pid"] for event in events} == {0, 1}


def raw(**steps: list[dict[str, Any]]) -> Raw:
    workload = {"model": "64x1", "samples": 1, "words": 8, "bucket_mb": 0.1, "submission": None}
    return {"workload": workload, "world_size": 2, "backend": "gloo", "device": "cpu", "steps": steps}


def step(hidden: float, launched: str = "c10d::allreduce_") -> dict[str, Any]:
    """A step of 12 ms, in which one collective runs for 4 ms, the first `hidden` of them while the rank computes."""
    names = ("forward", "backward", "exchange", "optimizer")
    return {
        "phases": [{"name": name, "start": 3.0 * i, "end": 3.0 * i + 3} for i, name in enumerate(names)],
        "computed": [[0.0, 5 + hidden]],
        "launched": [{"name": launched, "start": 5.0, "end": 5.1}],
        "profiled": [{"name": "gloo:all_reduce", "start": 5.0, "end": 9.0}],
        "observed": [{"name": "all_reduce", "start": 4.75, "end": 9.0}],
        "waits": [[6.0, 9.0]],
        "bytes": 2_000_000,
    }


def test_the_table_and_the_sentences_follow_from_the_steps() -> None:
    result = trace.evaluate(raw(naive=[step(0), step(0)], bucketed=[step(1), step(3)]))
    assert result.rows[0] == ["naive", 0, 1, 1, 2.0, 12.0, 4.0, 0.0, 0.0, 3.0, 0.25]
    assert [row[8] for row in result.rows] == [0, 0, 25, 75]
    assert (
        result.sentences[0]
        == "While collectives run, ranks compute during this share of the time: 0% with naive, 50% with bucketed."
    )
    assert result.sentences[1] == (
        "The profiler and the observed record saw the same 4 collectives in the same order; their launches differ by "
        "0.25 ms in the median and 0.25 ms at most."
    )


def test_a_disagreement_is_said() -> None:
    found = raw(naive=[step(0)], flat=[step(0, launched="c10d::broadcast_")])
    assert trace.evaluate(found).sentences[1] == (
        "The profiler and the observed record disagree about the collectives of flat."
    )


def test_a_single_rank_is_compared_by_its_launches() -> None:
    alone = {**step(0), "profiled": []}  # NCCL runs nothing there
    found = {**raw(naive=[alone]), "world_size": 1, "backend": "nccl", "device": "cuda"}
    result = trace.evaluate(found)
    assert result.sentences[0] == "No collective was seen to run, so there is no overlap."
    assert "saw the same 1 collectives in the same order" in result.sentences[1]
    assert "disagree about the collectives of naive" in trace.evaluate({**found, "world_size": 2}).sentences[1]


def test_each_training_has_a_picture_with_two_rows_for_each_rank() -> None:
    pytest.importorskip("matplotlib")
    found = trace.draw(raw(**{"naive": [step(0), step(0)], "ddp (submission)": [step(2), step(2)]}))
    assert list(found) == ["naive", "ddp-submission"]
    [axes] = found["ddp-submission"].axes
    assert axes.get_title(loc="left") == "One step with ddp (submission): 50% of communication is hidden"
    assert axes.get_xlabel() == "time since the first rank began (ms)"
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *("rank 0: computes", "rank 0: communicates", "rank 1: computes", "rank 1: communicates")
    ]
    assert {"operators", "collectives (profiler)", "launches (record)"} <= set(axes.get_legend_handles_labels()[1])


@pytest.mark.long
def test_the_command_traces_every_training_and_a_submission(tmp_path: Path) -> None:
    submission = str(Path(__file__).parents[3] / "examples" / "correct")
    workload = Workload("64x1", samples=1, words=8, bucket_mb=0.1, submission=submission)
    steps = trace.steps_of(on_ranks(traced_steps.measure_on_ranks, 2, workload, str(tmp_path), device="cpu"))
    assert {"naive", "torch", "zero1", "fsdp", "bucketed (submission)", "zero1 (submission)"} <= set(steps)
    assert all(step.agree for ranks in steps.values() for step in ranks)
    assert len(list(tmp_path.glob("*.observed.json"))) == len(steps)
