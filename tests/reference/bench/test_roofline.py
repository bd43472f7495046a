"""The roofline computes rates from the fastest repetitions, and the limits that follow from them."""

from typing import Any

import pytest
import torch

from pytest_ddp import distributed
from reference.bench import roofline
from reference.bench.roofline import alone, draw, evaluate, kept, together, tokens_to_hide

RAW: dict[str, Any] = {
    "backend": "gloo",
    "device": "cpu",
    "world_size": 2,
    "cores": 2,
    "threads": 1,
    "gpus": 0,
    "width": 1024,
    "operations": {
        "multiply matrices": {
            "flops": 2_000_000_000,
            "bytes": 12_000_000,
            "alone": [0.02, 0.06, 0.02],
            "together": [[0.04, 0.12, 0.04], [0.04, 0.12, 0.04]],
        },
        "add tensors": {"flops": 10**7, "bytes": 12 * 10**7, "alone": [0.012] * 3, "together": [[0.012] * 3] * 2},
        "copy a tensor": {"flops": 0, "bytes": 10**8, "alone": [0.01] * 3, "together": [[0.0125] * 3] * 2},
    },
    "send": {"bytes": 10**8, "seconds": [0.05, 0.1, 0.05]},
    "all_reduces": [
        {"world_size": 2, "bytes": 4000, "seconds": [[2e-4, 3e-4], [1e-4, 1e-4]]},
        {"world_size": 2, "bytes": 10**8, "seconds": [[0.1, 0.1], [0.2, 0.1]]},
    ],
}


def test_rates_are_those_of_the_fastest_repetition() -> None:
    assert alone(RAW, "multiply matrices", "flops") == pytest.approx(100e9)
    assert together(RAW, "multiply matrices", "flops") == pytest.approx(50e9)
    assert kept(RAW, "multiply matrices") == pytest.approx(0.5)


def test_tokens_that_hide_an_all_reduce() -> None:
    """50 GFLOP/s, 4 operations for each parameter and token; 1 GB/s, 4 bytes for each parameter."""
    assert tokens_to_hide(RAW) == pytest.approx(50)


def test_one_screen_says_what_the_machine_gives() -> None:
    found = evaluate(RAW)
    assert found.rows == [
        ["multiply matrices", pytest.approx(100), pytest.approx(50), "GFLOP/s"],
        ["add tensors", pytest.approx(10), pytest.approx(10), "GB/s"],
        ["copy a tensor", pytest.approx(10), pytest.approx(8), "GB/s"],
        ["send to another rank", pytest.approx(2), None, "GB/s"],
        ["all-reduce, bus bandwidth", None, pytest.approx(1), "GB/s"],
        ["all-reduce of 4 KB", None, pytest.approx(100), "us"],
    ]
    assert list(found.sentences) == [
        "A rank on a core computes 100 GFLOP/s and moves 10.0 GB/s of memory.",
        "An operation with less than 10 FLOP per byte waits for memory.",
        "If all 2 ranks work, each keeps 50% of the arithmetic and 80% of copies.",
        "From 50 tokens per rank on, backward takes longer than the all-reduce of its gradients.",
        "A GPU for each rank would raise all of these roofs; to measure one: --device cuda.",
    ]


def test_a_single_rank_computes_on_all_its_cores_and_shares_with_none() -> None:
    found = evaluate({**RAW, "world_size": 1, "threads": 8})
    assert found.sentences[0] == "A rank on 8 cores computes 100 GFLOP/s and moves 10.0 GB/s of memory."
    assert not any("ranks work" in sentence or "hide" in sentence for sentence in found.sentences)


@distributed(world_size=2)
def test_gloo_sends_no_tensors_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "current_device", lambda: torch.device("cuda"))
    assert roofline._send(10, 1) == []
    found = evaluate({**RAW, "device": "cuda", "send": {"bytes": 40, "seconds": []}})
    assert "send to another rank" not in [row[0] for row in found.rows]


def test_the_picture_has_a_roof_for_memory_and_for_links() -> None:
    pytest.importorskip("matplotlib")
    [axes] = draw(RAW)["roofline"].axes
    assert axes.get_ylabel() == "rate (GFLOP/s)"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "memory: 8.00 GB/s",
        "all-reduce: 1.00 GB/s",
        "measured: add tensors, 0.833 GFLOP/s",
        "measured: multiply matrices, 50 GFLOP/s",
    ]
    memory, links, *_ = axes.lines
    assert max(memory.get_ydata()) == max(links.get_ydata()) == pytest.approx(50)
    assert list(memory.get_ydata()) == pytest.approx([min(50, x * 8) for x in memory.get_xdata()])


@distributed(world_size=2)
def test_ranks_measure_everything() -> None:
    found = roofline.measure_on_ranks(16, 2000, repetitions=2, seconds=10)
    for operation in found["operations"].values():
        assert [len(times) for times in (operation["alone"], *operation["together"])] == [2, 2, 2]
    assert len(found["send"]["seconds"]) == 2
    assert [one["bytes"] for one in found["all_reduces"]] == [4000, 8000]
