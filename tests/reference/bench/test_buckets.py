"""The benchmark of bucket sizes compares steps and waits with the overhead model, and finds the flat part."""

import math
from typing import Any

import pytest

from pytest_ddp import distributed
from reference.bench import bucket_sizes
from reference.bench.bucket_sizes import MIB, Model, Size, bucket_count, fitted, flat_part, sizes_of, spaced_sizes
from reference.bench.buckets import draw, evaluate
from reference.bench.contestants import Contestant, Workload

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
        "waits": {f"bucketed {mib!r}": [[wait(mib) * slow] * 2 for slow in noise] for mib in SIZES},
        "own_work": {f"bucketed {mib!r}": [[0.0, 0.0]] for mib in SIZES},
        "contended": [{"bytes": 10**6, "alone": [0.002], "computing": [0.005]} for _ in SIZES],
    }


def model_of(numbers: dict[str, Any]) -> Model:
    model = fitted(numbers)
    assert isinstance(model, Model)
    return model


def slower(numbers: dict[str, Any], mib: float, seconds: float) -> None:
    """Make the steps of a size longer by so many seconds."""
    numbers["seconds"][f"bucketed {mib!r}"] = [step + seconds for step in numbers["seconds"][f"bucketed {mib!r}"]]


def test_the_fit_gives_the_models_best_size() -> None:
    model = model_of(raw())
    assert (model.w, model.o) == pytest.approx((W, OVERHEAD))
    assert model.best_mib == pytest.approx(math.sqrt(16 * MIB * W * OVERHEAD) / MIB)
    assert model.wait(4.0) == pytest.approx(wait(4.0))


def test_a_bucket_holds_whole_parameters() -> None:
    assert [bucket_count(PARAMETERS, mib) for mib in SIZES] == [16, 16, 8, 4, 2, 1]


def test_the_flat_part_is_around_the_shortest_step_in_spite_of_noise() -> None:
    assert flat_part(sizes_of(raw())) == (2, 8)  # steps of 48.2 ms with 4 MiB, 50.1 and 50.4 with its neighbours
    numbers = raw()
    numbers["seconds"]["bucketed 8.0"] = [step * 1.06 for step in numbers["seconds"]["bucketed 4.0"]]
    assert flat_part(sizes_of(numbers)) == (2, 4)


def test_exact_numbers_agree_with_the_model() -> None:
    found = evaluate(raw())
    waited, modelled = zip(*((row[7], row[10]) for row in found.rows), strict=True)
    assert waited == pytest.approx(modelled)
    text = " ".join(found.sentences)
    assert "is shortest with 4 MiB (48.2 ms), and at most 5% longer from 2 to 8 MiB." in text
    assert (
        "the model's best size is 3.91 MiB. The measured size nearest to it, 4 MiB, lies inside this flat part" in text
    )
    assert "within a round its step takes 1.00 of the shortest one's." in text
    assert "With 4 MiB the wait after backward is 8.2 ms on the slowest rank, by the model 8.2 ms, so the two" in text
    assert "1.00 MB, takes 5.00 ms while the ranks compute, 2.5 times as long as alone (2.00 ms)" in text
    assert "There the step is 8.2 ms longer than without exchange, and 8.2 ms are the wait" in text


def test_a_best_size_outside_the_flat_part_is_explained_by_the_parts_of_the_step() -> None:
    numbers = raw((1.0,) * 3)
    slower(numbers, 4.0, 0.010)  # in backward
    slower(numbers, 8.0, -0.002)
    text = " ".join(evaluate(numbers).sentences)
    shortest = "The median of the measured steps is shortest with 8 MiB (48.4 ms)"
    assert f"{shortest}, and more than 5% longer with the sizes next to it." in text
    assert (
        "The measured size nearest to it, 4 MiB, lies outside this flat part: within a round its step takes 1.20 of "
        "the shortest one's, which is +9.8 ms. The wait after the last rank's backward makes -2.2 ms of them (by the "
        "model -2.2 ms), and the step before it +12.0 ms, which the model leaves out."
    ) in text
    assert (
        "There the step is 18.2 ms longer than without exchange, and 8.2 ms are the wait after the last rank's" in text
    )
    assert "The other 10.0 ms are backward, which fills buckets and shares its 2 cores with all-reduces" in text


def test_a_best_size_that_a_bump_cuts_off_is_called_as_good() -> None:
    numbers = raw((1.0,) * 3)
    slower(numbers, 8.0, 0.010)  # the bump
    slower(numbers, 32.0, -0.010)
    text = " ".join(evaluate(numbers).sentences)
    assert "4 MiB, lies outside this flat part, but within a round its step takes only 1.0" in text


@pytest.mark.parametrize(("remains", "words"), [(0.009, "0.8 ms longer"), (0.007, "1.2 ms shorter")])
def test_a_wait_unlike_the_models_is_split_into_what_was_measured(remains: float, words: str) -> None:
    numbers = raw((1.0,) * 3)
    numbers["waits"]["bucketed 4.0"] = [[0.003 + remains, 0.003 + remains + 0.006]] * 3
    numbers["own_work"]["bucketed 4.0"] = [[0.003, 0.004]] * 3
    text = " ".join(evaluate(numbers).sentences)
    assert (
        "6.0 ms of the measured wait are for the rank whose backward ends last, and 3.0 ms are the wrapper's own work"
    ) in text
    assert f"What remains is {words} than by the model." in text


def test_an_exchange_that_does_not_slow_backward_down_is_said() -> None:
    numbers = raw((1.0,) * 3)
    slower(numbers, 4.0, -0.001)
    assert "the exchange does not slow backward down." in " ".join(evaluate(numbers).sentences)


def test_all_reduces_that_do_not_fit_leave_the_measured_sizes() -> None:
    numbers = {**raw(), "all_reduces": [{"world_size": 1, "bytes": 1000, "seconds": [[1.0]]}]}
    found = evaluate(numbers)
    assert "give no bandwidth and overhead, so no best size: all-reduces of 1 different sizes" in found.sentences[1]
    assert {row[10] for row in found.rows} == {None}


def test_an_overhead_that_fits_zero_gives_no_best_size() -> None:
    numbers = raw()
    for one in numbers["all_reduces"]:
        one["seconds"] = [[max(one["bytes"] / W - 1e-7, 1e-9)] * 2] * 3
    assert "so no best size: noise hides the overhead." in evaluate(numbers).sentences[1]


def test_a_submission_without_buckets_is_said_to_be_missing() -> None:
    numbers = raw()
    numbers["workload"]["submission"] = "path"
    assert evaluate(numbers).sentences[-1] == (
        "The submission has no wrapper with buckets that works, so none of it is measured here."
    )


def test_a_submission_is_compared_at_its_best_size() -> None:
    numbers, mine = raw(), "bucketed (submission)"
    for mib in SIZES:
        numbers["seconds"][f"{mine} {mib!r}"] = [2 * step for step in numbers["seconds"][f"bucketed {mib!r}"]]
        for what in ("waits", "own_work"):
            numbers[what][f"{mine} {mib!r}"] = numbers[what][f"bucketed {mib!r}"]
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
    assert names == [
        "bucketed, slowest rank",
        "bucketed, after the last rank's backward",
        "model: s / (n w) + n o",
        "best size by the model",
    ]
    assert list(waits.lines[0].get_ydata()) == pytest.approx([wait(mib) * 1e3 for mib in SIZES])
    assert "at most 5% above the shortest step" in [text.get_text() for text in steps.get_legend().get_texts()]


@distributed(world_size=2)
def test_ranks_measure_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped: list[str] = []

    def with_timed_finish(one: Contestant, waits: list[float]) -> Contestant:
        wrapped.append(one.name)
        return original(one, waits)

    original = bucket_sizes._with_timed_finish
    monkeypatch.setattr(bucket_sizes, "_with_timed_finish", with_timed_finish)
    found = bucket_sizes.measure_on_ranks(Workload("16x1", 1, 4, 1.0), 3, rounds=2, warm_up=1, seconds=10)
    keys = [f"bucketed {mib!r}" for mib in found["mib"]]
    assert set(wrapped) == {"bucketed", "none"}  # on a GPU, this waits for backward
    model = fitted(found)
    assert found["mib"][3:] == ([model.best_mib] if isinstance(model, Model) else [])
    assert list(found["seconds"]) == ["none", *keys]
    assert {len(times) for times in [*found["seconds"].values(), *found["waits"].values()]} == {2}
    assert all(
        0 < min(waits) <= max(waits) <= step
        for key in keys
        for waits, step in zip(found["waits"][key], found["seconds"][key], strict=True)
    )
    assert all(seconds > 0 for key in keys for ranks in found["own_work"][key] for seconds in ranks)
    assert all(min(each["alone"] + each["computing"]) > 0 for each in found["contended"])
    assert all(isinstance(size, Size) for size in sizes_of(found))
