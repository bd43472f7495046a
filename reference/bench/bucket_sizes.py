"""Training steps with buckets of many sizes: measured on ranks, and beside the overhead model.

Two times are measured for each size: the whole step, and the wait after backward until all gradients are averaged. The
model (`reference.communication.overhead`) predicts the wait: with `s` bytes of gradients in `n` buckets, it is
`s / (n w) + n o`. Bandwidth `w` and overhead `o` are fitted to all-reduces on the same ranks, while they do nothing
else. The model is best with `sqrt(s w o)` bytes per bucket. Buckets smaller than a parameter hold one parameter each.

Three measured parts say why a wait is not the model's:

- *Late ranks.* Ranks do not end backward together, and the first one waits for the last. The rank that comes last waits
  for none. So the longest wait of a round, less the shortest, is spent on late ranks.
- *Own work.* A wrapper has work after backward even if all buckets have arrived: giving gradients back, small messages.
  It is timed in further steps, in which the ranks pause after backward until the buckets have arrived.
- *All-reduces.* The rest: they take longer than the model says, or less if more of them end during backward than it
  assumes. `contention` measures how much longer an all-reduce takes while ranks compute.

Source: the CS336 assignment on systems, section on bucketed gradients.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from reference.bench import all_reduce_times, contention
from reference.bench.contention import Contention
from reference.bench.contestants import NONE, Contestant, Workload, batch, build_model, contestant, submitted_names
from reference.bench.method import Spread, differences, ratios, spread
from reference.bench.ranks import gather
from reference.bench.result import Raw
from reference.bench.step_times import time_steps
from reference.communication.overhead import ddp_overhead, optimal_bucket_size
from reference.communication.process_group import current_device
from reference.partition import fill_buckets

MIB = 1024 * 1024  # bytes: the unit of bucket sizes, as in torch's bucket_cap_mb
BUCKETED = "bucketed"
FLAT = 0.05  # sizes whose step is at most so much longer than the best one's are in the flat part
_ALL_REDUCES, _ALL_REDUCE_SECONDS = 10, 1.0
_ALL_REDUCE_BYTES = (1_000, 10_000, 100_000, 1_000_000)  # besides the whole model
_PAUSED_STEPS = 3
_LONGEST_PAUSE = 0.2  # seconds


# On the ranks


def measure_on_ranks(
    workload: Workload, sizes: Sequence[float] | int, rounds: int, warm_up: int, seconds: float
) -> Raw:
    """Measure all-reduces, and then the steps of each bucket size.

    Args:
        workload: the model and the batch.
        sizes: bucket sizes in MiB; or how many, from half the smallest parameter to twice the model, beside the best
            size by the model.
        rounds: steps of each size, at most.
        warm_up: steps before those.
        seconds: time for all rounds; at least five are measured.
    """
    parameters = [parameter.nbytes for parameter in build_model(workload.model).parameters()]
    all_reduces = all_reduce_times.measure_on_ranks(
        [dist.get_world_size()], [*_ALL_REDUCE_BYTES, sum(parameters)], 3, _ALL_REDUCES, _ALL_REDUCE_SECONDS
    )["measurements"]
    model = fitted({"all_reduces": all_reduces, "parameter_bytes": parameters})
    best = [model.best_mib] if isinstance(model, Model) else []
    mib = [*spaced_sizes(parameters, sizes), *best] if isinstance(sizes, int) else list(sizes)
    names = [BUCKETED, *(name for name in submitted_names(workload) if name.startswith(BUCKETED))]
    made = {key_of(name, size): contestant(name, replace(workload, bucket_mb=size)) for name in names for size in mib}
    waits: dict[str, list[float]] = {key: [] for key in made}
    timed = {key: _with_timed_finish(one, waits[key]) for key, one in made.items()}
    tokens = batch(workload)
    none = _with_timed_finish(contestant(NONE, workload), [])  # as the others: on a GPU, timing waits for backward
    steps = time_steps({NONE: none, **timed}, tokens, rounds, warm_up, seconds)
    of_ranks = {key: _by_round(seconds[-len(steps[NONE]) :]) for key, seconds in waits.items()}
    return {
        "backend": dist.get_backend(),
        "device": current_device().type,
        "world_size": dist.get_world_size(),
        "workload": asdict(workload),
        "parameter_bytes": parameters,
        "all_reduces": all_reduces,
        "contended": contention.measure_on_ranks([bucket_bytes(parameters, size) for size in mib]),
        "names": names,
        "mib": mib,
        "seconds": steps,
        "waits": of_ranks,
        "own_work": {key: _own_work(one, tokens, max(map(max, of_ranks[key]))) for key, one in made.items()},
    }


def spaced_sizes(parameters: Sequence[int], count: int) -> list[float]:
    """Bucket sizes in MiB, each by the same factor larger, from half the smallest parameter to twice the model."""
    low, high = min(parameters) / 2 / MIB, 2 * sum(parameters) / MIB
    return [low * (high / low) ** (number / (count - 1)) for number in range(count)]


def key_of(name: str, mib: float) -> str:
    """The key of a wrapper with buckets of a size, in the raw numbers."""
    return f"{name} {mib!r}"


def _with_timed_finish(one: Contestant, waits: list[float]) -> Contestant:
    return replace(one, finish=lambda: waits.append(_time_finish(one)))


def _time_finish(one: Contestant) -> float:
    """Seconds from the end of this rank's backward until its gradients are averaged."""
    if current_device().type == "cuda":
        torch.cuda.current_stream().synchronize()  # backward's kernels; collectives have streams of their own
    began = time.perf_counter()
    one.finish()
    if current_device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _own_work(one: Contestant, tokens: Tensor, longest_wait: float) -> list[list[float]]:
    """Seconds after backward if all buckets have arrived: of each rank, for each of a few steps."""
    mine = []
    for _ in range(_PAUSED_STEPS):
        one.optimizer.zero_grad()
        torch.autograd.backward(one.loss(tokens))
        dist.barrier()
        time.sleep(min(longest_wait, _LONGEST_PAUSE))
        mine.append(_time_finish(one))
    return _by_round(mine)


def _by_round(mine: Sequence[float]) -> list[list[float]]:
    """The numbers of all ranks, round by round, from those of this rank."""
    return [list(ranks) for ranks in zip(*gather(list(mine)), strict=True)]


# From the raw numbers


@dataclass(frozen=True)
class Model:
    """The overhead model of these links and this model's gradients.

    Attributes:
        w: bandwidth of an all-reduce, in bytes of gradients per second.
        o: seconds of an all-reduce without its bytes.
        parameters: bytes of each parameter, in the order of the module.
    """

    w: float
    o: float
    parameters: Sequence[int]

    @property
    def best_mib(self) -> float:
        """The best bucket size in MiB; at most all gradients."""
        s = sum(self.parameters)
        return min(float(s), optimal_bucket_size(s, self.w, self.o)) / MIB

    def wait(self, mib: float) -> float:
        """Seconds after backward that the model expects with buckets of this size in MiB."""
        return ddp_overhead(sum(self.parameters), self.w, self.o, bucket_count(self.parameters, mib))


def bucket_count(parameters: Sequence[int], mib: float) -> int:
    """How many buckets of this size the reference fills with parameters of these bytes."""
    return len(fill_buckets(parameters[::-1], ["float32"] * len(parameters), mib * MIB))


def bucket_bytes(parameters: Sequence[int], mib: float) -> int:
    """Bytes of a bucket of this size in MiB, on average."""
    return sum(parameters) // bucket_count(parameters, mib)


def fitted(raw: Raw) -> Model | str:
    """The model that fits the measured all-reduces; or why none does."""
    [line] = all_reduce_times.fits(all_reduce_times.measurements({"measurements": raw["all_reduces"]})).values()
    if isinstance(line, str):
        return line
    return Model(*line, raw["parameter_bytes"]) if line[1] else "noise hides the overhead"


@dataclass(frozen=True)
class Size:
    """What one bucket size did.

    Attributes:
        name: of the wrapper: the reference's, or a submission's.
        mib: size of a bucket, in 1024 * 1024 bytes.
        buckets: how many buckets the model fills.
        seconds: of the step, round by round.
        relative: the step, relative to the same step without exchange, within each round.
        added: seconds that the step is longer than that one, within each round.
        wait: seconds from the end of a rank's backward until its gradients are averaged, on the slowest rank.
        last_wait: the same on the rank that waits least, because its backward ended last.
        late: seconds of the wait that are spent on late ranks.
        own: seconds that the wrapper works after backward if all buckets have arrived.
        contention: all-reduces of one bucket, alone and beside computation.
    """

    name: str
    mib: float
    buckets: int
    seconds: Sequence[float]
    relative: Spread
    added: float
    wait: Spread
    last_wait: float
    late: float
    own: float
    contention: Contention

    @property
    def step(self) -> Spread:
        """Seconds of the step."""
        return spread(self.seconds)


def sizes_of(raw: Raw) -> list[Size]:
    """What each bucket size did, smallest first, wrapper by wrapper."""
    return [_size(raw, name, mib) for name in raw["names"] for mib in sorted(raw["mib"])]


def _size(raw: Raw, name: str, mib: float) -> Size:
    key, none = key_of(name, mib), raw["seconds"][NONE]
    seconds, waits = raw["seconds"][key], raw["waits"][key]
    return Size(
        name,
        mib,
        buckets=bucket_count(raw["parameter_bytes"], mib),
        seconds=seconds,
        relative=ratios(seconds, none),
        added=differences(seconds, none).median,
        wait=spread([max(ranks) for ranks in waits]),
        last_wait=median(min(ranks) for ranks in waits),
        late=median(max(ranks) - min(ranks) for ranks in waits),
        own=median(min(ranks) for ranks in raw["own_work"][key]),
        contention=Contention.of(raw["contended"][raw["mib"].index(mib)]),
    )


def best_of(sizes: Sequence[Size]) -> Size:
    """The size whose step is shortest."""
    return min(sizes, key=lambda size: size.step.median)


def flat_part(sizes: Sequence[Size]) -> tuple[float, float]:
    """The smallest and the largest bucket size, in MiB, around the best one whose steps are nearly as short."""
    best = best_of(sizes)
    is_flat = [ratios(size.seconds, best.seconds).median <= 1 + FLAT for size in sizes]
    low = high = list(sizes).index(best)
    while low > 0 and is_flat[low - 1]:
        low -= 1
    while high < len(sizes) - 1 and is_flat[high + 1]:
        high += 1
    return sizes[low].mib, sizes[high].mib
