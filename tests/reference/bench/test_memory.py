"""`memory`: what ranks keep, measured and on paper."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from subgroups import subgroups_destroyed

from pytest_ddp import DDPContext, distributed
from reference.bench import memory, memory_moments
from reference.bench.accounting import StateBytes
from reference.bench.contestants import Workload
from reference.bench.memory_moments import kept, measure_on_ranks, on_paper

ROOT = Path(__file__).parents[3]
WORKLOAD = Workload("128x2", samples=2, words=16, bucket_mb=25.0)


def moments(*held: int, peak: int = 0) -> list[dict[str, Any]]:
    names = (
        "initialisation",
        *(step := ("after forward", "before the step", "after the step")),
        "between steps",
        *step,
    )
    return [{"name": name, "bytes": each, "peak": peak + each} for name, each in zip(names, held, strict=True)]


def raw(*ranks: list[dict[str, Any]], name: str = "ddp") -> dict[str, Any]:
    workload = {"model": "64x2", "samples": 2, "words": 16, "bucket_mb": 25.0, "submission": None}
    found = {"workload": workload, "world_size": len(ranks), "backend": "gloo", "device": "cpu"}
    return {**found, "moments": {name: list(ranks)}}


def test_states_are_differences_of_moments() -> None:
    found = kept(moments(40, 47, 80, 160, 120, 150, 160, 160, peak=5))
    assert found.states == StateBytes(parameters=40, gradients=40, optimizer=80)
    assert found.activations == 30
    assert found.peak == 165


def test_a_training_that_keeps_more_than_the_references_is_explained() -> None:
    parameters = on_paper(raw(moments(*[0] * 8)), "ddp", 0).parameters
    held = [parameters * each for each in (4, 5, 12, 20, 12, 13, 20, 20)]  # gradients twice
    result = memory.evaluate(raw(moments(*held), moments(*held), name="ddp (submission)"))
    assert "take 20.00 with ddp (submission) bytes per parameter" in result.sentences[0]
    assert result.sentences[1] == (
        "ddp (submission): +25.00% from the paper, +0.00% because AdamW has step counters; +25.00% are tensors that "
        "the references do not keep."
    )
    [first, second] = result.rows
    assert (first[1], second[1]) == (0, 1)
    assert first[6:9] == [20, 16, pytest.approx(25)]


@distributed(world_size=2)
def test_states_are_within_2_percent_of_the_paper_and_equal_to_the_count(ddp: DDPContext) -> None:
    with subgroups_destroyed():  # that of FSDP
        found = measure_on_ranks(WORKLOAD)
    assert list(found["moments"]) == ["ddp", "zero1", "fsdp"]
    for name, every in found["moments"].items():
        paper, seen = on_paper(found, name, ddp.rank), kept(every[ddp.rank])
        for part in ("parameters", "gradients", "optimizer"):
            measured, formula, exact = (getattr(each, part) for each in (seen.states, paper.formula, paper.exact))
            assert measured == pytest.approx(formula, rel=0.02)
            assert measured == pytest.approx(exact, abs=300)  # step counters
        assert seen.activations == pytest.approx(paper.activations, rel=0.02)
        assert seen.peak > seen.states.total


def test_on_cuda_a_discarded_training_allocates_workspaces_before_watching(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    @contextmanager
    def watched(_: object) -> Iterator[SimpleNamespace]:
        order.append("watch")
        yield SimpleNamespace(mark=lambda _: None, moments=[])

    def training() -> Any:
        order.append("make")
        optimizer = SimpleNamespace(step=lambda: None, zero_grad=lambda: None)
        loss = torch.ones((), requires_grad=True)
        return SimpleNamespace(loss=lambda _: loss * 2, finish=lambda: order.append("backward"), optimizer=optimizer)

    monkeypatch.setattr(memory_moments, "watch_allocations", watched)
    for is_cuda, expected in ((False, []), (True, ["make", "backward"])):
        order.clear()
        memory_moments.watch_training(training, SimpleNamespace(is_cuda=is_cuda, device=None))
        assert order == [*expected, "watch", "make", "backward", "backward"]


@distributed(world_size=2)
def test_a_submission_is_measured_beside_the_references(ddp: DDPContext) -> None:
    with subgroups_destroyed():
        found = measure_on_ranks(Workload("64x1", 1, 8, 25.0, submission=str(ROOT / "examples" / "correct")))
    assert list(found["moments"]) == ["ddp", "zero1", "fsdp", "ddp (submission)", "zero1 (submission)"]
    theirs, ours = (kept(found["moments"][name][ddp.rank]).states for name in ("zero1 (submission)", "zero1"))
    assert theirs == ours


def test_the_picture_has_a_stack_for_each_training_and_the_paper() -> None:
    pytest.importorskip("matplotlib")
    [bars, course] = memory.draw(raw(moments(40, 47, 80, 160, 120, 150, 160, 160)))["memory"].axes
    assert bars.get_ylabel() == course.get_ylabel() == "memory (MB)"
    assert len(bars.patches) == 2 * 4
    assert [text.get_text() for text in bars.get_legend().get_texts()] == [
        *("parameters", "gradients", "optimizer state", "activations")
    ]
    assert list(course.lines[0].get_ydata()) == [40e-6, 47e-6, 80e-6, 160e-6]
