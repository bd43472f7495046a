"""`buckets`: the time of a step by the size of its buckets, beside the overhead model and its best size.

    python -m reference.bench buckets --model 256x4 --world-size 2

Every size trains a copy of the model on the same ranks, one step each in turn (`bucket_sizes`). The model assumes that
communication takes nothing from backward, and that backward computes the gradients of a bucket as fast as the bucket is
sent. On CPUs neither holds. So the sentences say whether the model's best size is among those with the shortest steps,
and which measured parts make up the difference.
"""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from reference.bench import pictures
from reference.bench.benchmark import Benchmark
from reference.bench.bucket_sizes import (
    BUCKETED,
    FLAT,
    Model,
    Size,
    best_of,
    fitted,
    flat_part,
    key_of,
    measure_on_ranks,
    sizes_of,
)
from reference.bench.contestants import NONE
from reference.bench.method import Spread, differences, ratios
from reference.bench.result import Column, Raw, Result
from reference.bench.step_times import STEP_COLUMNS, compared, repeatability, step_cells
from reference.bench.training_options import (
    add_model_option,
    add_round_options,
    add_training_options,
    at_least,
    positive,
    train_on_ranks,
    workload_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEGABYTE = 1e6
_NEARLY = 0.1  # a wait that differs from the model's by at most so much agrees with it


def add_options(command: ArgumentParser) -> None:
    """Add the options of this command."""
    add_model_option(command, "256x4")
    command.add_argument("--sizes", type=positive, nargs="+", help="bucket sizes in MiB (default: --points, spaced)")
    command.add_argument(
        "--points", type=at_least(2), default=8, help="number of sizes, from below one parameter to above the model"
    )
    add_training_options(command)
    add_round_options(command, rounds=20, warm_up=1, seconds=40.0, what="all rounds")


def measure(options: Namespace) -> Raw:
    """Start the ranks and measure on them."""
    workload, sizes = workload_of(options, options.model), options.sizes or options.points
    return train_on_ranks(options, measure_on_ranks, workload, sizes, options.rounds, options.warm_up, options.seconds)


def evaluate(raw: Raw) -> Result:
    """The table of all sizes, and whether the model's best size lies where steps are shortest.

    `wait` is that of the slowest rank. `late ranks` and `own work` are parts of it; `by the model` is the wait that the
    model predicts.
    """
    workload, model = raw["workload"], fitted(raw)
    return Result(
        name=BENCHMARK.name,
        title=f"Bucket sizes on {raw['world_size']} ranks ({raw['backend']}, {raw['device']}): {workload['model']}, "
        f"{sum(raw['parameter_bytes']) / MEGABYTE:.1f} MB of gradients; from and to are quartiles",
        columns=[
            Column("wrapper"),
            Column("bucket", "MiB"),
            Column("buckets"),
            *STEP_COLUMNS,
            Column("relative to none"),
            Column("wait", "ms"),
            Column("late ranks", "ms"),
            Column("own work", "ms"),
            Column("by the model", "ms"),
        ],
        rows=[_row(size, model) for size in sizes_of(raw)],
        sentences=_sentences(raw, model),
        raw=raw,
    )


def _row(size: Size, model: Model | str) -> list[Any]:
    modelled = None if isinstance(model, str) else model.wait(size.mib) * 1e3
    wait = [size.wait.median * 1e3, size.late * 1e3, size.own * 1e3, modelled]
    return [size.name, size.mib, size.buckets, *step_cells(size.seconds), size.relative.median, *wait]


def _sentences(raw: Raw, model: Model | str) -> list[str]:
    sizes = [size for size in sizes_of(raw) if size.name == BUCKETED]
    best, steps = best_of(sizes), raw["seconds"]
    sentences = [_about_flat_part(best, *flat_part(sizes))]
    if isinstance(model, str):
        sentences.append(f"The measured all-reduces give no bandwidth and overhead, so no best size: {model}.")
    else:
        near = min(sizes, key=lambda size: max(size.mib / model.best_mib, model.best_mib / size.mib))
        sentences += [
            _about_optimum(model, near, best, flat_part(sizes)),
            _about_wait(model, near),
            _about_contention(near),
            _about_added(raw, near),
        ]
    if raw["device"] == "cpu":
        sentences.append(
            "A GPU has units of its own for copies between devices, so all-reduces take less from backward."
        )
    sentences += repeatability(steps, [key_of(BUCKETED, size.mib) for size in sizes], NONE)
    return [*sentences, *_about_submission(raw)]


def _about_flat_part(best: Size, low: float, high: float) -> str:
    sentence = f"The median of the measured steps is shortest with {best.mib:.3g} MiB ({best.step.median * 1e3:.1f} ms)"
    if low == high:
        return f"{sentence}, and more than {FLAT:.0%} longer with the sizes next to it."
    return f"{sentence}, and at most {FLAT:.0%} longer from {low:.3g} to {high:.3g} MiB."


def _about_optimum(model: Model, near: Size, best: Size, flat: tuple[float, float]) -> str:
    """Whether the model's best size is as good as the measured one; if not, which part of the step makes it longer."""
    ratio = ratios(near.seconds, best.seconds).median
    fit = (
        f"All-reduces fit w = {model.w / 1e9:.2f} GB/s and o = {model.o * 1e6:.0f} us: the model's best size is "
        f"{model.best_mib:.3g} MiB. The measured size nearest to it, {near.mib:.3g} MiB,"
    )
    if flat[0] <= near.mib <= flat[1]:
        return f"{fit} lies inside this flat part: within a round its step takes {ratio:.2f} of the shortest one's."
    if ratio <= 1 + FLAT:
        return f"{fit} lies outside this flat part, but within a round its step takes only {ratio:.2f} of the shortest."
    longer = differences(near.seconds, best.seconds).median
    waits, modelled = near.last_wait - best.last_wait, model.wait(near.mib) - model.wait(best.mib)
    return (
        f"{fit} lies outside this flat part: within a round its step takes {ratio:.2f} of the shortest one's, which is "
        f"{longer * 1e3:+.1f} ms. The wait after the last rank's backward makes {waits * 1e3:+.1f} ms of them (by the "
        f"model {modelled * 1e3:+.1f} ms), and the step before it {(longer - waits) * 1e3:+.1f} ms, which the model "
        "leaves out."
    )


def _about_wait(model: Model, near: Size) -> str:
    """Which measured parts make the wait another one than the model's, at the size nearest to the model's best."""
    wait, modelled = near.wait.median, model.wait(near.mib)
    sentence = (
        f"With {near.mib:.3g} MiB the wait after backward is {wait * 1e3:.1f} ms on the slowest rank, by the model "
        f"{modelled * 1e3:.1f} ms"
    )
    if abs(wait - modelled) <= _NEARLY * modelled:
        return f"{sentence}, so the two agree."
    remains = wait - near.late - near.own
    longer = "longer" if remains > modelled else "shorter"
    return (
        f"{sentence}. {near.late * 1e3:.1f} ms of the measured wait are for the rank whose backward ends last, and "
        f"{near.own * 1e3:.1f} ms are the wrapper's own work, which it has even if all buckets have arrived; the model "
        f"has neither. What remains is {abs(remains - modelled) * 1e3:.1f} ms {longer} than by the model."
    )


def _about_contention(near: Size) -> str:
    """How much of the model's bandwidth is left while ranks compute."""
    alone, computing = near.contention.alone.median, near.contention.computing.median
    return (
        f"An all-reduce of one such bucket, {near.contention.size / MEGABYTE:.2f} MB, takes {computing * 1e3:.2f} ms "
        f"while the ranks compute, {computing / alone:.1f} times as long as alone ({alone * 1e3:.2f} ms); the model "
        "assumes no difference."
    )


def _about_added(raw: Raw, near: Size) -> str:
    """What the exchange adds to the whole step: after the last rank's backward, and before."""
    before = near.added - near.last_wait
    where = f"its {raw['cores']} cores" if raw["device"] == "cpu" else "its GPU"
    sentence = (
        f"There the step is {near.added * 1e3:.1f} ms longer than without exchange, and {near.last_wait * 1e3:.1f} ms "
        "are the wait after the last rank's backward"
    )
    if before <= 0:
        return f"{sentence}: the exchange does not slow backward down."
    return (
        f"{sentence}. The other {before * 1e3:.1f} ms are backward, which fills buckets and shares {where} with "
        "all-reduces."
    )


def _about_submission(raw: Raw) -> list[str]:
    names = [name for name in raw["names"] if name != BUCKETED]
    if raw["workload"].get("submission") and not names:
        return ["The submission has no wrapper with buckets that works, so none of it is measured here."]
    return [_about_submitted(raw, name) for name in names]


def _about_submitted(raw: Raw, name: str) -> str:
    best = best_of([size for size in sizes_of(raw) if size.name == name])
    steps = {name: best.seconds, BUCKETED: raw["seconds"][key_of(BUCKETED, best.mib)]}
    return f"The step of {name} is shortest with {best.mib:.3g} MiB; there it takes {compared(steps, name, BUCKETED)}."


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
    model, sizes = fitted(raw), sizes_of(raw)
    for name, colour in pictures.colours(raw["names"]).items():
        own = [size for size in sizes if size.name == name]
        mib = [size.mib for size in own]
        pictures.line(waits, mib, [_quartiles(size.wait.scaled(1e3)) for size in own], f"{name}, slowest rank", colour)
        last = [size.last_wait * 1e3 for size in own]
        waits.plot(mib, last, ":", color=colour, label=f"{name}, after the last rank's backward")
        pictures.line(steps, mib, [_quartiles(size.relative) for size in own], name, colour)
    low, high = flat_part([size for size in sizes if size.name == BUCKETED])
    steps.axvspan(low, high, color="#e9e4c9", zorder=0, label=f"at most {FLAT:.0%} above the shortest step")
    if isinstance(model, Model):
        _draw_model(waits, raw, model)
    for axes in (waits, steps):
        if isinstance(model, Model):
            axes.axvline(model.best_mib, color="black", linestyle=":", label="best size by the model")
        pictures.plain_log(axes.xaxis)
        axes.legend()
    pictures.plain_log(waits.yaxis)
    return {BENCHMARK.name: picture}


def _quartiles(found: Spread) -> tuple[float, float, float]:
    return found.first, found.median, found.third


def _draw_model(axes: "Axes", raw: Raw, model: Model) -> None:
    mib = pictures.log_range(min(raw["mib"]), max(raw["mib"]), points=200)
    modelled = [model.wait(size) * 1e3 for size in mib]
    axes.plot(mib, modelled, "--", color=pictures.COLOURS[5], label="model: s / (n w) + n o")


BENCHMARK = Benchmark(
    name="buckets",
    help="Time of a training step by the size of its buckets, beside the overhead model.",
    add_options=add_options,
    measure=measure,
    evaluate=evaluate,
    draw=draw,
)
