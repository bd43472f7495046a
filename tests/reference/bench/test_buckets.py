"""The benchmark of bucket sizes compares steps and waits with the overhead model, and finds the flat part."""

import math
from typing import Any

import pytest

from pytest_ddp import distributed
from reference.bench import buckets
from reference.bench.buckets import MIB, best_size, bucket_count, draw, evaluate, fitted, flat_part, spaced_sizes
from reference.bench.contestants import Workload

W, OVERHEAD = 1e9, 1e-3  # bandwidth and overhead of these links
PARAMETERS = [MIB] * 16
SIZES = [0.5, 1.0, 2.0, 4.0, 8.0, 32.0]


def wait(mib: float) -> float:
    """The model's seconds, with the buckets that there really are."""
    n = {0.5: 16, 1.0: 16, 2.0: 8, 4.0: 4, 8.0: 2, 32.0: 1}[mib]
    return sum(PARAMETERS) / n / W + n * OVERHEAD


def raw(noise: tuple[float, ...] = (1.0, 3.0, 1.0)) -> dict[str, Any]:
    """Steps of 40 ms and the wait that the model predicts, in rounds in which the machine is slower or not."""
    return {
        "backend": "gloo",
        "device": "cpu",
        "world_size": 2,
        "cores": 2,
        "workload": {"model": "64x2"},
        "parameter_bytes": PARAMETERS,
        "all_reduces": [
            {"world_size": 2, "bytes": size, "seconds": [[size / W + OVERHEAD] * 2] * 3}
            for size in (10**3, 10**6, 10**8)
        ],
        "names": ["bucketed"],
        "mib": SIZES,
        "seconds": {
            "none": [0.04 * slow for slow in noise],
            **{f"bucketed {mib!r}": [(0.04 + wait(mib)) * slow for slow in noise] for mib in SIZES},
        },
        "waits": {f"bucketed {mib!r}": [wait(mib) * slow for slow in noise] for mib in SIZES},
    }


def test_the_fit_gives_the_models_best_size() -> None:
    assert fitted(raw()) == pytest.approx((W, OVERHEAD))
    assert best_size(raw()) == pytest.approx(math.sqrt(16 * MIB * W * OVERHEAD) / MIB)


def test_a_bucket_holds_whole_parameters() -> None:
    assert [bucket_count(PARAMETERS, mib) for mib in SIZES] == [16, 16, 8, 4, 2, 1]


def test_the_flat_part_is_around_the_shortest_step_in_spite_of_noise() -> None:
    assert flat_part(raw()) == (2, 8)  # steps of 48.2 ms with 4 MiB, 50.1 and 50.4 with its neighbours
    slower = raw()
    slower["seconds"]["bucketed 8.0"] = [step * 1.06 for step in slower["seconds"]["bucketed 4.0"]]
    assert flat_part(slower) == (2, 4)


def test_exact_numbers_agree_with_the_model() -> None:
    found = evaluate(raw())
    waited, modelled = zip(*(row[-2:] for row in found.rows), strict=True)
    assert waited == pytest.approx(modelled)
    assert "the model's best size is 3.91 MiB" in found.sentences[0]
    assert "4 MiB, lies inside this flat part: within a round its step takes 1.00 of that one's" in found.sentences[1]
    assert (
        "With 4 MiB the wait after backward is 8.2 ms, by the model 8.2 ms; the step is 8.2 ms longer"
        in found.sentences[2]
    )


def test_a_submission_is_compared_at_its_best_size() -> None:
    numbers, mine = raw(), "bucketed (submission)"
    for mib in SIZES:
        numbers["seconds"][f"{mine} {mib!r}"] = [2 * step for step in numbers["seconds"][f"bucketed {mib!r}"]]
        numbers["waits"][f"{mine} {mib!r}"] = numbers["waits"][f"bucketed {mib!r}"]
    found = evaluate({**numbers, "names": ["bucketed", mine]})
    expected = f"The step of {mine} is shortest with 4 MiB; there it takes 2.00 of bucketed's (quartiles 2.00 to 2.00)."
    assert found.sentences[-1] == expected


def test_sizes_reach_from_below_one_parameter_to_above_the_model() -> None:
    sizes = spaced_sizes([1024, 4096, 8192], 5)
    assert sizes[0] * MIB == 512
    assert sizes[-1] * MIB == pytest.approx(2 * (1024 + 4096 + 8192))
    assert sizes[2] / sizes[1] == pytest.approx(sizes[4] / sizes[3])


def test_the_picture_shows_measured_and_modelled_waits_and_the_flat_part() -> None:
    pytest.importorskip("matplotlib")
    waits, steps = draw(raw())["buckets"].axes
    assert (waits.get_xlabel(), waits.get_ylabel(), steps.get_ylabel()) == ("bucket (MiB)", "time (ms)", "ratio")
    names = [text.get_text() for text in waits.get_legend().get_texts()]
    assert names == ["bucketed", "model: s / (n w) + n o", "best size by the model"]
    assert list(waits.lines[0].get_ydata()) == pytest.approx([wait(mib) * 1e3 for mib in SIZES])
    assert "at most 5% above the shortest step" in [text.get_text() for text in steps.get_legend().get_texts()]


@distributed(world_size=2)
def test_ranks_measure_every_size() -> None:
    found = buckets.measure_on_ranks(Workload("16x1", 1, 4, 1.0), 3, rounds=2, warm_up=1, seconds=10)
    keys = [f"bucketed {mib!r}" for mib in found["mib"]]
    assert list(found["seconds"]) == ["none", *keys]
    assert {len(times) for times in [*found["seconds"].values(), *found["waits"].values()]} == {2}
    assert all(
        0 < wait <= step for key in keys for wait, step in zip(found["waits"][key], found["seconds"][key], strict=True)
    )
