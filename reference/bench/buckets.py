"""`buckets`: the time of a step by the size of its buckets, beside the overhead model and its best size.

    python -m reference.bench buckets --model 256x4 --world-size 2

Every size trains a copy of the model on the same ranks, one step each in turn. Two times are measured: the wait after
backward until the last bucket has arrived, and the whole step, relative to a step without exchange.

The model (`reference.communication.overhead`) predicts the wait: with `s` bytes of gradients in `n` buckets, it is
`s / (n w) + n o`. Bandwidth `w` and overhead `o` are fitted to all-reduces on the same ranks before. The model is best
with `sqrt(s w o)` bytes per bucket. Buckets smaller than a parameter hold one parameter each. The model assumes that
communication takes nothing from backward, and that backward computes the gradients of a bucket as fast as the bucket is
sent. On CPUs neither holds, so the sentences compare.

Source: the CS336 assignment on systems, section on bucketed gradients.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from reference.bench import all_reduce, pictures
from reference.bench.benchmark import Benchmark
from reference.bench.contestants import NONE, Contestant, Workload, batch, build_model, contestant, submitted_names
from reference.bench.ddp import add_workload_options, time_steps
from reference.bench.method import Spread, cores, differences, ratios, spread
from reference.bench.ranks import gather, on_ranks
from reference.bench.result import Column, Raw, Result
from reference.communication.launch import in_job
from reference.communication.overhead import ddp_overhead, fit, optimal_bucket_size
from reference.communication.process_group import current_device
from reference.partition import fill_buckets

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIB = 1024 * 1024  # bytes: the unit of bucket sizes, as in torch's bucket_cap_mb
MEGABYTE = 1e6
_BUCKETED = "bucketed"
_FLAT = 0.05  # sizes whose step is at most so much longer than the best one's are in the flat part
_ALL_REDUCES, _ALL_REDUCE_SECONDS = 10, 1.0
_ALL_REDUCE_BYTES = (1_000, 10_000, 100_000, 1_000_000)  # besides the whole model


@dataclass(frozen=True)
class Size:
    """What one bucket size did.

    Attributes:
        name: of the wrapper: the reference's, or a submission's.
        mib: size of a bucket, in 1024 * 1024 bytes.
        buckets: how many buckets the model fills.
        step: seconds of the step.
        relative: the step, relative to the same step without exchange, within each round.
        wait: seconds from the end of backward until all gradients are averaged.
        modelled: seconds that the model expects for the wait.
    """

    name: str
    mib: float
    buckets: int
    step: Spread
    relative: Spread
    wait: Spread
    modelled: float


# On the ranks


def measure_on_ranks(
    workload: Workload, sizes: Sequence[float] | int, rounds: int, warm_up: int, seconds: float
) -> Raw:
    """Measure all-reduces, and then the steps of each bucket size.

    Args:
        workload: the model and the batch.
        sizes: bucket sizes in MiB; or how many, from half the smallest parameter to twice the model.
        rounds: steps of each size, at most.
        warm_up: steps before those.
        seconds: time for all rounds; at least five are measured.
    """
    parameters = [parameter.nbytes for parameter in build_model(workload.model).parameters()]
    mib = spaced_sizes(parameters, sizes) if isinstance(sizes, int) else list(sizes)
    all_reduces = all_reduce.measure_on_ranks(
        [dist.get_world_size()], [*_ALL_REDUCE_BYTES, sum(parameters)], 3, _ALL_REDUCES, _ALL_REDUCE_SECONDS
    )
    names = [_BUCKETED, *(name for name in submitted_names(workload) if name.startswith(_BUCKETED))]
    waits: dict[str, list[float]] = {}
    contestants = {NONE: contestant(NONE, workload)}
    for name in names:
        for size in mib:
            key = f"{name} {size!r}"
            contestants[key] = _timed_finish(contestant(name, replace(workload, bucket_mb=size)), waits, key)
    steps = time_steps(contestants, batch(workload), rounds, warm_up, seconds)
    return {
        "backend": dist.get_backend(),
        "device": current_device().type,
        "world_size": dist.get_world_size(),
        "workload": asdict(workload),
        "parameter_bytes": parameters,
        "all_reduces": all_reduces["measurements"],
        "names": names,
        "mib": mib,
        "seconds": steps,
        "waits": _slowest(waits, len(steps[NONE])),
    }


def spaced_sizes(parameters: Sequence[int], count: int) -> list[float]:
    """Bucket sizes in MiB, each by the same factor larger, from half the smallest parameter to twice the model."""
    low, high = min(parameters) / 2 / MIB, 2 * sum(parameters) / MIB
    return [low * (high / low) ** (number / (count - 1)) for number in range(count)]


def _timed_finish(one: Contestant, waits: dict[str, list[float]], key: str) -> Contestant:
    def finish() -> None:
        began = time.perf_counter()
        one.finish()
        waits.setdefault(key, []).append(time.perf_counter() - began)

    return replace(one, finish=finish)


def _slowest(waits: Mapping[str, Sequence[float]], rounds: int) -> dict[str, list[float]]:
    """The wait of the slowest rank in each of the last rounds; those before were warm-up."""
    every = gather({key: list(seconds[-rounds:]) for key, seconds in waits.items()})
    return {key: [max(ranks) for ranks in zip(*(one[key] for one in every), strict=True)] for key in waits}


# The command


def add_options(command: ArgumentParser) -> None:
    """Add the options of this command."""
    command.add_argument("--model", default="256x4", help="a transformer: small, ..., or WIDTHxLAYERS")
    command.add_argument("--sizes", type=float, nargs="+", help="bucket sizes in MiB (default: --points, spaced)")
    command.add_argument("--points", type=int, default=9, help="number of sizes, from below one parameter to the model")
    add_workload_options(command)


def measure(options: Namespace) -> Raw:
    """Start the ranks and measure on them."""
    raw: Raw = on_ranks(
        measure_on_ranks,
        None if in_job() else options.world_size,
        Workload(options.model, options.samples, options.words, options.bucket_mb, options.submission),
        options.sizes or options.points,
        options.rounds,
        options.warm_up,
        options.seconds,
        backend=options.backend,
        device=options.device,
    )
    return {**raw, "cores": cores()}


# From the raw numbers


def sizes_of(raw: Raw) -> list[Size]:
    """What each bucket size did, smallest first, wrapper by wrapper."""
    predict = _model(raw)
    return [_size(raw, name, mib, predict) for name in raw["names"] for mib in sorted(raw["mib"])]


def _size(raw: Raw, name: str, mib: float, predict: Callable[[float], float]) -> Size:
    key = f"{name} {mib!r}"
    steps = raw["seconds"]
    return Size(
        name,
        mib,
        buckets=bucket_count(raw["parameter_bytes"], mib),
        step=spread(steps[key]),
        relative=ratios(steps[key], steps[NONE]),
        wait=spread(raw["waits"][key]),
        modelled=predict(mib),
    )


def bucket_count(parameters: Sequence[int], mib: float) -> int:
    """How many buckets of this size the reference fills with parameters of these bytes."""
    return len(fill_buckets(parameters[::-1], ["float32"] * len(parameters), mib * MIB))


def fitted(raw: Raw) -> tuple[float, float]:
    """Bandwidth in bytes per second, and overhead in seconds, of the all-reduces that were measured.

    Raises:
        ValueError: they do not fit.
    """
    found = [all_reduce.Measurement(one["world_size"], one["bytes"], one["seconds"]) for one in raw["all_reduces"]]
    return fit([one.size for one in found], [one.slowest.median for one in found])


def _model(raw: Raw) -> Callable[[float], float]:
    """Seconds after backward that the model expects, as a function of the bucket size in MiB."""
    (w, o), parameters = fitted(raw), raw["parameter_bytes"]
    return lambda mib: ddp_overhead(sum(parameters), w, o, bucket_count(parameters, mib))


def best_size(raw: Raw) -> float:
    """The model's best bucket size in MiB; at most the whole model."""
    s = sum(raw["parameter_bytes"])
    return min(float(s), optimal_bucket_size(s, *fitted(raw))) / MIB


def flat_part(raw: Raw) -> tuple[float, float]:
    """The smallest and the largest bucket size, in MiB, around the best one whose steps are nearly as short."""
    mib = sorted(raw["mib"])
    steps = [raw["seconds"][f"{_BUCKETED} {size!r}"] for size in mib]
    best = min(range(len(mib)), key=lambda index: spread(steps[index]).median)
    is_flat = [ratios(step, steps[best]).median <= 1 + _FLAT for step in steps]
    low = high = best
    while low > 0 and is_flat[low - 1]:
        low -= 1
    while high < len(mib) - 1 and is_flat[high + 1]:
        high += 1
    return mib[low], mib[high]


def evaluate(raw: Raw) -> Result:
    """The table of all sizes, and whether the model's best size lies where steps are shortest."""
    workload = raw["workload"]
    return Result(
        name=BENCHMARK.name,
        title=f"Bucket sizes on {raw['world_size']} ranks ({raw['backend']}, {raw['device']}): {workload['model']}, "
        f"{sum(raw['parameter_bytes']) / MEGABYTE:.1f} MB of gradients",
        columns=[
            Column("wrapper"),
            Column("bucket", "MiB"),
            Column("buckets"),
            Column("step", "ms"),
            Column("first quartile", "ms"),
            Column("third quartile", "ms"),
            Column("relative to none"),
            Column("wait after backward", "ms"),
            Column("wait by the model", "ms"),
        ],
        rows=[_row(size) for size in sizes_of(raw)],
        sentences=_sentences(raw),
        raw=raw,
    )


def _row(size: Size) -> list[Any]:
    step = size.step.scaled(1e3)
    relative, wait, modelled = size.relative.median, size.wait.median * 1e3, size.modelled * 1e3
    return [size.name, size.mib, size.buckets, step.median, step.first, step.third, relative, wait, modelled]


def _sentences(raw: Raw) -> list[str]:
    sizes = [size for size in sizes_of(raw) if size.name == _BUCKETED]
    (w, o), optimum = fitted(raw), best_size(raw)
    near = min(sizes, key=lambda size: max(size.mib / optimum, optimum / size.mib))
    return [
        f"All-reduces fit w = {w / 1e9:.2f} GB/s and o = {o * 1e6:.0f} us: the model's best size is {optimum:.3g} MiB.",
        _about_flat_part(raw, near),
        _about_model(raw, near),
        *(_about_submitted(raw, name, best_of(raw, name)) for name in raw["names"] if name != _BUCKETED),
    ]


def best_of(raw: Raw, name: str) -> Size:
    """The size at which this wrapper's step is shortest."""
    return min((size for size in sizes_of(raw) if size.name == name), key=lambda size: size.step.median)


def _about_submitted(raw: Raw, name: str, best: Size) -> str:
    steps = raw["seconds"]
    ratio = ratios(steps[f"{name} {best.mib!r}"], steps[f"{_BUCKETED} {best.mib!r}"])
    return (
        f"The step of {name} is shortest with {best.mib:.3g} MiB; there it takes {ratio.median:.2f} of {_BUCKETED}'s "
        f"(quartiles {ratio.first:.2f} to {ratio.third:.2f})."
    )


def _about_flat_part(raw: Raw, near: Size) -> str:
    best = best_of(raw, _BUCKETED)
    low, high = flat_part(raw)
    place = "inside" if low <= near.mib <= high else "outside"
    return (
        f"Measured, the median step is shortest with {best.mib:.3g} MiB ({best.step.median * 1e3:.1f} ms), and at most "
        f"{_FLAT:.0%} longer from {low:.3g} to {high:.3g} MiB. The size next to the model's best, {near.mib:.3g} MiB, "
        f"lies {place} this flat part: within a round its step takes {_to_best(raw, near, best):.2f} of that one's."
    )


def _to_best(raw: Raw, size: Size, best: Size) -> float:
    steps = raw["seconds"]
    return ratios(steps[f"{_BUCKETED} {size.mib!r}"], steps[f"{_BUCKETED} {best.mib!r}"]).median


def _about_model(raw: Raw, near: Size) -> str:
    """What separates the model from the measurement, at the size nearest to the model's best."""
    added = differences(raw["seconds"][f"{_BUCKETED} {near.mib!r}"], raw["seconds"][NONE]).median
    sentence = (
        f"With {near.mib:.3g} MiB the wait after backward is {near.wait.median * 1e3:.1f} ms, by the model "
        f"{near.modelled * 1e3:.1f} ms; the step is {added * 1e3:.1f} ms longer than without exchange"
    )
    if raw["device"] == "cpu":
        return (
            f"{sentence}: {raw['world_size']} ranks and their communication threads share {raw['cores']} cores, so "
            "all-reduces during backward slow it down, which the model leaves out and a GPU does less."
        )
    return sentence + "."


def draw(raw: Raw) -> "Mapping[str, Figure]":
    """The wait after backward beside the model, and the step relative to one without exchange, by bucket size."""
    where = f"{raw['workload']['model']}, {raw['world_size']} ranks, {raw['backend']}, {raw['device']}"
    picture, (waits, steps) = pictures.panels(
        [
            (f"Wait after backward ({where}): median and quartiles", "bucket (MiB)", "time (ms)"),
            ("Step relative to the same step without exchange", "bucket (MiB)", "ratio"),
        ],
        inches=(8.0, 8.0),
    )
    sizes = sizes_of(raw)
    for name, colour in pictures.colours(raw["names"]).items():
        own = [size for size in sizes if size.name == name]
        mib = [size.mib for size in own]
        pictures.line(waits, mib, [_millis(size.wait) for size in own], name, colour)
        pictures.line(steps, mib, [(r.first, r.median, r.third) for r in (size.relative for size in own)], name, colour)
    _draw_model(waits, raw)
    low, high = flat_part(raw)
    steps.axvspan(low, high, color="#e9e4c9", zorder=0, label=f"at most {_FLAT:.0%} above the shortest step")
    for axes in (waits, steps):
        axes.axvline(best_size(raw), color="black", linestyle=":", label="best size by the model")
        pictures.plain_log(axes.xaxis)
        axes.legend()
    pictures.plain_log(waits.yaxis)
    return {BENCHMARK.name: picture}


def _millis(seconds: Spread) -> tuple[float, float, float]:
    scaled = seconds.scaled(1e3)
    return scaled.first, scaled.median, scaled.third


def _draw_model(axes: "Axes", raw: Raw) -> None:
    predict = _model(raw)
    mib = pictures.log_range(min(raw["mib"]), max(raw["mib"]), points=200)
    axes.plot(
        mib, [predict(size) * 1e3 for size in mib], "--", color=pictures.COLOURS[5], label="model: s / (n w) + n o"
    )


BENCHMARK = Benchmark(
    name="buckets",
    help="Time of a training step by the size of its buckets, beside the overhead model.",
    add_options=add_options,
    measure=measure,
    evaluate=evaluate,
    draw=draw,
)
