"""The benchmark of wrappers compares steps within a round, and tells hidden from exposed communication."""

from typing import Any

import pytest

from pytest_ddp import distributed
from reference.bench import wrapper_steps
from reference.bench.contestants import Workload
from reference.bench.ddp import draw, evaluate
from reference.bench.method import Spread
from reference.bench.wrapper_steps import (
    NAMES,
    added,
    fitting,
    hidden_share,
    profiled_step,
    seconds_needed,
    seconds_of,
    share,
    step_spread,
)


def model(name: str, parameters: int) -> dict[str, Any]:
    """Steps of 10 ms without exchange in a quiet round and 30 ms in a noisy one; naive adds 20 ms, bucketed 5."""
    adds = {"none": 0.0, "naive": 0.02, "bucketed": 0.005}
    exposed = {"none": 0.0, "naive": 0.02, "bucketed": 0.005}
    return {
        "workload": {"model": name, "samples": 2, "words": 64, "bucket_mb": 1.0},
        "parameters": parameters,
        "peak_bytes": dict.fromkeys(adds, 12_000_000),
        "seconds": {key: [0.01 + more, 0.03 + more, 0.01 + more] for key, more in adds.items()},
        "profiled": {
            key: [{"step": 0.01 + more, "communication": 0.02 if more else 0.0, "exposed": exposed[key]}] * 6
            for key, more in adds.items()
        },
    }


RAW = {
    "backend": "gloo",
    "device": "cpu",
    "world_size": 2,
    "cores": 2,
    "models": [model("128x4", 2_000_000), model("64x2", 300_000)],
    "left_out": [{"model": "512x4", "needed": 139.2, "left": 31.9}],
}


def test_what_a_wrapper_adds_is_taken_within_a_round() -> None:
    found = added(model("128x4", 1), "naive")
    assert (found.first, found.median, found.third) == pytest.approx((0.02, 0.02, 0.02))


def test_exposed_and_hidden_communication() -> None:
    one = model("128x4", 1)
    assert share(one, "naive", "exposed") == pytest.approx(2 / 3)
    assert hidden_share(one, "naive") == 0
    assert hidden_share(one, "bucketed") == pytest.approx(0.75)
    assert hidden_share(one, "none") is None


def test_a_slow_profiled_step_changes_no_milliseconds() -> None:
    """Only shares of a profiled step count: its collectives take three times as long too."""
    one, slow = model("128x4", 1), model("128x4", 1)
    slow["profiled"] = {
        name: [{what: 3 * seconds for what, seconds in step.items()} for step in steps]
        for name, steps in one["profiled"].items()
    }
    for name in one["seconds"]:
        assert profiled_step(slow, name) == pytest.approx(3 * profiled_step(one, name))
        for what in ("communication", "exposed"):
            assert seconds_of(slow, name, what) == pytest.approx(seconds_of(one, name, what))
    assert seconds_of(slow, "naive", "communication") == pytest.approx(2 / 3 * 0.03)
    assert evaluate({**RAW, "models": [slow]}).sentences[2] == (
        "Under the profiler a step takes 3.0 to 3.0 times as long; collectives and exposed are the same shares of the "
        "step without it."
    )


def test_rows_and_sentences_come_from_the_numbers() -> None:
    found = evaluate(RAW)
    assert len(found.rows) == 6
    assert found.rows[1] == ["128x4", 2, "naive", *map(pytest.approx, (30, 30, 40, 20, 20, 20, 200 / 3, 30, 12))]
    assert (
        "128x4, 2.0 million parameters), bucketed is the fastest: its step takes 0.50 of naive's" in found.sentences[0]
    )
    assert found.sentences[1] == "Communication hidden behind computation: naive 0%, bucketed 75%."
    assert "in every other round, the ratios to none differ by at most 80%" in found.sentences[3]
    assert found.sentences[4] == (
        "512x4 is left out: it would take about 140 s, and the smaller models leave 31 s; give more --seconds."
    )
    assert "share 2 cores" in found.sentences[5]


def test_a_single_rank_shows_the_work_of_the_wrappers_alone() -> None:
    alone = model("128x4", 2_000_000)
    alone["profiled"] = dict.fromkeys(alone["profiled"], alone["profiled"]["none"])  # nccl runs nothing
    found = evaluate({**RAW, "backend": "nccl", "device": "cuda", "world_size": 1, "models": [alone], "left_out": []})
    assert found.sentences[0] == "A single rank has none to exchange with: what a wrapper adds is its own work."
    assert found.sentences[-1].startswith("nccl runs no kernel for a single rank; with more GPUs")


def test_the_time_of_a_model_is_estimated_from_one_step() -> None:
    six, one = (seconds_needed(0.1, NAMES[:count], 7) for count in (6, 1))
    assert six == pytest.approx(6 * one)
    assert one == pytest.approx(0.15 * (2 * 2 + 7 + 3))  # watched, timed and profiled steps, with an exchange


def test_a_submission_is_compared_with_the_reference_of_its_kind() -> None:
    one = model("128x4", 2_000_000)
    mine = "bucketed (submission)"
    one["seconds"][mine] = [2 * step for step in one["seconds"]["bucketed"]]
    one["profiled"][mine], one["peak_bytes"][mine] = one["profiled"]["bucketed"], one["peak_bytes"]["bucketed"]
    found = evaluate({**RAW, "models": [one]})
    assert f"The step of {mine} takes 2.00 of bucketed's (quartiles 2.00 to 2.00)." in found.sentences
    one["profiled"][mine] = one["profiled"]["none"]
    silent = evaluate({**RAW, "models": [one]})
    assert f"The step of {mine} has no collective: nothing averages its gradients." in silent.sentences


def test_models_are_left_out_from_the_first_that_does_not_fit() -> None:
    assert fitting([10, 20, 40], 70) == 3
    assert fitting([10, 20, 40], 69) == 2
    assert fitting([10, 20, 40], 5) == 1


def test_the_picture_has_bars_for_the_largest_model_and_lines_over_sizes() -> None:
    pytest.importorskip("matplotlib")
    bars, lines = draw(RAW)["ddp"].axes
    assert "128x4, 2.0 million parameters" in bars.get_title(loc="left")
    assert [label.get_text() for label in bars.get_xticklabels()] == ["none", "naive", "bucketed"]
    heights = [bar.get_height() for bar in bars.patches]
    assert heights == pytest.approx([10, 10, 10, 0, 20, 5, 0, 20, 20])  # computation, exposed, all communication
    assert (lines.get_xlabel(), lines.get_ylabel()) == ("parameters (million)", "ratio")
    assert [text.get_text() for text in lines.get_legend().get_texts()] == ["naive", "bucketed"]
    assert list(lines.lines[0].get_xdata()) == [0.3, 2]


def test_a_submissions_lines_are_dashed_in_the_colours_of_the_references() -> None:
    pytest.importorskip("matplotlib")
    one = model("128x4", 2_000_000)
    for part in ("seconds", "profiled", "peak_bytes"):
        one[part] |= {f"{name} (submission)": one[part][name] for name in ("naive", "bucketed")}
    _, lines = draw({**RAW, "models": [one]})["ddp"].axes
    naive, bucketed, naive_too, bucketed_too, _ = lines.lines
    assert [line.get_linestyle() for line in (naive, bucketed, naive_too, bucketed_too)] == ["-", "-", "--", "--"]
    assert naive.get_color() == naive_too.get_color() != bucketed.get_color() == bucketed_too.get_color()


@distributed(world_size=2)
def test_ranks_measure_every_wrapper_on_the_models_that_fit_the_time() -> None:
    larger, smallest = Workload("32x1", 1, 4, 0.01), Workload("16x1", 1, 4, 0.01)
    found = wrapper_steps.measure_on_ranks([larger, smallest], rounds=2, warm_up=1, seconds=0)
    [one], [left_out] = found["models"], found["left_out"]
    assert (one["workload"]["model"], left_out["model"]) == ("16x1", "32x1")
    assert left_out["needed"] > left_out["left"]
    assert tuple(one["seconds"]) == tuple(one["profiled"]) == tuple(one["peak_bytes"]) == NAMES
    assert {len(times) for times in one["seconds"].values()} == {2}
    assert all(step["communication"] > 0 for name in NAMES[1:] for step in one["profiled"][name])
    assert all(step["communication"] == 0 for step in one["profiled"]["none"])
    assert one["peak_bytes"]["none"] > 4 * one["parameters"]
    assert isinstance(step_spread(one, "flat"), Spread)
