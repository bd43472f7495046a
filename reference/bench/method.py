"""How every benchmark measures, so that its numbers can be believed on a machine that others use too.

- **Interleaved rounds.** Variants run in turn, one repetition of each per round, another one first in each round. What
  else the machine does falls on all of them.
- **Ratios within a round.** A ratio of two variants is taken within each round, where both met nearly the same machine.
- **Medians and quartiles** over rounds: a mean would follow one repetition that was disturbed.
- **Warm-up.** The first repetitions open connections and allocate memory. They are not counted.
- **Noise** is measured: cores that other processes used, cores that the hypervisor took away (steal), load average.
  A result says so if the machine was noisy.

Timing never decides whether code is correct.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import psutil
import torch

from reference.communication.launch import in_job

Key = TypeVar("Key")

NOISY_SHARE = 0.1  # of the cores, used by other processes or taken by the hypervisor
SEED = 0  # of models and batches; ranks add their number where they must differ


@dataclass(frozen=True)
class Spread:
    """The median of repetitions, with the quartiles around it."""

    first: float
    median: float
    third: float

    def scaled(self, factor: float) -> "Spread":
        """In another unit."""
        return Spread(self.first * factor, self.median * factor, self.third * factor)


def spread(values: Sequence[float]) -> Spread:
    """The median and the quartiles of one or more values."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(first, statistics.median(values), third)


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """The spread of the ratios of two variants, each taken within one round."""
    return spread([above / below for above, below in zip(numerators, denominators, strict=True)])


def repeat_error(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """By how much a ratio changes if it is measured twice: the first, third, ... rounds against the others.

    Returns:
        The difference of the two medians, as a share of the smaller one; 0 with fewer than two rounds.
    """
    if len(numerators) < 2:  # noqa: PLR2004  # two measurements
        return 0.0
    low, high = sorted(ratios(numerators[half::2], denominators[half::2]).median for half in (0, 1))
    return high / low - 1


def differences(minuends: Sequence[float], subtrahends: Sequence[float]) -> Spread:
    """The spread of the differences of two variants, each taken within one round."""
    return spread([more - less for more, less in zip(minuends, subtrahends, strict=True)])


def interleave(
    variants: Mapping[Key, Callable[[], float]], rounds: int, warm_up: int, seconds: float | None = None
) -> dict[Key, list[float]]:
    """Run all variants in turn, another one first in each round.

    Ranks that call this must run the same variants in the same order, and may not pass `seconds`: each would stop at
    a round of its own.

    Args:
        variants: each runs one repetition and returns its number, for example its seconds.
        rounds: repetitions of each variant that count.
        warm_up: rounds before those, which do not count.
        seconds: begin no further round after this time; at least one counts.

    Returns:
        The numbers of each variant, round by round.
    """
    names = list(variants)
    for _ in range(warm_up):
        for name in names:
            variants[name]()
    found: dict[Key, list[float]] = {name: [] for name in names}
    began = time.perf_counter()
    for number in range(rounds):
        if number and seconds is not None and time.perf_counter() - began > seconds:
            break
        for place in range(len(names)):
            name = names[(number + place) % len(names)]
            found[name].append(variants[name]())
    return found


@dataclass(frozen=True)
class Environment:
    """Where and when numbers were measured.

    Attributes:
        torch: version of torch.
        python: version of Python.
        system: kernel and architecture.
        processor: its model name.
        cores: the cores that this process may use.
        memory_gb: of the machine, in units of 10^9 bytes.
        gpus: names of the GPUs that torch sees.
        seed: of the random numbers.
        load_before: the machine's load average over a minute, when the benchmark began.
        load_after: the same when it had ended; the benchmark's own ranks are in it.
        seconds: how long it ran.
        others: cores that other processes used meanwhile, on average.
        steal: cores that the hypervisor gave to other machines meanwhile, on average.
    """

    torch: str
    python: str
    system: str
    processor: str
    cores: int
    memory_gb: float
    gpus: Sequence[str]
    seed: int
    load_before: float
    load_after: float
    seconds: float
    others: float
    steal: float

    def to_json(self) -> dict[str, Any]:
        """The attributes as JSON can hold them."""
        return asdict(self)


@contextmanager
def watch_machine() -> Iterator[Callable[[], Environment]]:
    """Watch the cores of this process while a benchmark runs: yields a function that returns the environment up to now.

    The processes that this one started count as the benchmark's own, and in a job those of all its ranks here.
    """
    load, began = os.getloadavg()[0], time.perf_counter()
    busy, own, steal = _busy(), _own(), _steal()

    def environment() -> Environment:
        seconds = time.perf_counter() - began
        others = (_busy() - busy) - (_own() - own)
        return Environment(
            torch=torch.__version__,
            python=platform.python_version(),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            processor=_processor(),
            cores=cores(),
            memory_gb=psutil.virtual_memory().total / 1e9,
            gpus=[torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
            seed=SEED,
            load_before=load,
            load_after=os.getloadavg()[0],
            seconds=seconds,
            others=max(0.0, others / seconds),
            steal=max(0.0, (_steal() - steal) / seconds),
        )

    yield environment


def noise(environment: Mapping[str, Any]) -> str:
    """One sentence: whether the machine was noisy while it measured, and how that was seen."""
    others, steal, available = environment["others"], environment["steal"], environment["cores"]
    seen = (
        f"other processes used {others:.2f} of {available} cores, the hypervisor took {steal:.2f}, and the load "
        f"average was {environment['load_before']:.1f} before and {environment['load_after']:.1f} after"
    )
    if max(others, steal) > NOISY_SHARE * available:
        return f"The machine was noisy, so trust the ratios more than the times: {seen}."
    return f"The machine was quiet: {seen}."


def cores() -> int:
    """The cores that this process may use."""
    return len(_cores())


def _cores() -> set[int]:
    """The numbers of these cores."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _times() -> list[Any]:
    """The times of the cores that this process may use: a container, for example, may have few of the machine's."""
    mine = _cores()
    return [times for core, times in enumerate(psutil.cpu_times(percpu=True)) if core in mine]


def _busy() -> float:
    """Seconds in which these cores ran processes."""
    return float(sum(times.user + times.system + getattr(times, "nice", 0.0) for times in _times()))


def _steal() -> float:
    """Seconds in which the hypervisor took these cores."""
    return float(sum(getattr(times, "steal", 0.0) for times in _times()))


def _own() -> float:
    """CPU seconds of this process and of all that it started; in a job, of the job's processes on this machine.

    The agent of the job started the ranks. A process that has ended counts with the one that waited for it.
    """
    root = psutil.Process(os.getppid() if in_job() else os.getpid())
    used = 0.0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):  # it has just ended
            times = process.cpu_times()
            used += times.user + times.system + times.children_user + times.children_system
    return used


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123  # a file of the kernel
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
