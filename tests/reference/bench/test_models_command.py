"""`models`: the assignment's transformers on paper, and those that were measured."""

from argparse import Namespace
from typing import Any

import pytest
import torch

from pytest_ddp import distributed
from reference.bench import models
from reference.bench.accounting import paper
from reference.bench.models import measure_on_rank
from reference.bench.result import Raw
from reference.bench.transformer_costs import Batch, activation_bytes, parameters, step_operations
from reference.models.transformer import SIZES

WORDS = 32


def moments(name: str, activations: float) -> list[dict[str, Any]]:
    """Give what a training measured whose states have the sizes of the formula."""
    elements = parameters(SIZES[name])
    held = (4 * elements, 0, 8 * elements, 16 * elements, 12 * elements, 12 * elements + activations, 0, 16 * elements)
    return [{"name": str(number), "bytes": each, "peak": each} for number, each in enumerate(held)]


def raw(**measured: Any) -> Raw:
    sizes = {"sizes": ["tiny", "medium", "2.7b"], "words": WORDS, "world_size": 4, "memory_gb": 20.0, "device": "cpu"}
    return {
        **sizes,
        "operations_per_second": 1e10,
        "measured": {"tiny": None, "medium": None, "2.7b": None, **measured},
    }


def test_the_table_is_the_arithmetic() -> None:
    result = models.evaluate(raw())
    rows = {row[0]: row for row in result.rows}
    assert rows["2.7b"][1] == parameters(SIZES["2.7b"]) / 1e6
    assert rows["2.7b"][2] == round(step_operations(SIZES["2.7b"], Batch(1, WORDS)) / 1e9, 1)
    states = [paper(name, parameters(SIZES["2.7b"]), 4).total / 1e9 for name in ("ddp", "zero1", "fsdp")]
    assert rows["2.7b"][4:7] == pytest.approx(states, rel=1e-3)
    assert rows["2.7b"][7:9] == [0, 0]  # 55 and 34 GB of states
    assert rows["2.7b"][9] > 0
    assert result.sentences[0] == (
        "The largest size of which a rank with 20 GB can train a sequence is medium with ddp, medium with zero1, 2.7b "
        "with fsdp."
    )
    assert result.sentences[1].startswith("No size was measured")


def test_a_measured_size_is_compared_with_the_arithmetic() -> None:
    size = SIZES["tiny"]
    activations = 1.02 * activation_bytes(size, Batch(1, WORDS))
    seconds = step_operations(size, Batch(1, WORDS)) / 5e9  # half the speed of a product of matrices
    result = models.evaluate(raw(tiny={"moments": moments("tiny", activations), "seconds": [seconds] * 3}))
    assert result.rows[0][10:] == [pytest.approx(0), pytest.approx(2), pytest.approx(seconds)]
    assert result.sentences[1] == (
        "Measured tiny: states are at most 0.00% and activations 2.00% from the arithmetic, and steps reach 50% of the "
        "speed of a product of two matrices (10 x 10^9 operations per second)."
    )


@distributed(world_size=1)
def test_a_size_that_fits_is_measured_and_a_larger_one_is_not() -> None:
    found = measure_on_rank(["tiny", "2.7b"], WORDS, seconds=1e-3 * WORDS)
    assert found["measured"]["2.7b"] is None
    if found["measured"]["tiny"] is not None:  # on a busy machine even this one may take too long
        result = models.evaluate({**raw(**found["measured"]), "sizes": ["tiny"]})
        assert abs(result.rows[0][10]) < 2
        assert abs(result.rows[0][11]) < 2


def test_on_a_gpu_what_torch_kept_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [10]
    monkeypatch.setattr(torch.cuda, "empty_cache", kept.clear)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (80 - sum(kept), 80))
    assert models._free(torch.device("cuda")) == 80


def test_ranks_of_a_job_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match="models trains on one rank, which it starts: run it without torchrun"):
        models.measure(Namespace())


def test_the_picture_has_a_bar_for_each_size_and_strategy() -> None:
    pytest.importorskip("matplotlib")
    [states, largest] = models.draw(raw())["models"].axes
    assert (states.get_ylabel(), largest.get_ylabel()) == ("memory (GB)", "sequences per rank")
    assert [text.get_text() for text in largest.get_legend().get_texts()] == ["ddp", "zero1", "fsdp"]
    for axes in (states, largest):  # logarithmic, and the shortest bar is in it
        assert axes.get_yscale() == "log"
        heights = [bar.get_height() for bar in axes.patches if bar.get_height()]
        assert min(heights) / 10 < axes.get_ylim()[0] <= min(heights)
    assert len(states.patches) == len(largest.patches) == 9
    assert [label.get_text() for label in states.get_xticklabels()] == ["tiny", "medium", "2.7b"]
