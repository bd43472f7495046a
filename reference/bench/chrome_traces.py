"""What two traces of one step say: that of torch's profiler, and that of the observed record; both as Chrome JSON.

The profiler sees when the program launches a collective, when it runs on the backend's thread, and when operators
compute. The record sees when the program launches a collective, waits for it, and knows that it is complete. Both are
brought to one clock: the machine's monotonic one, which all ranks on it share. The profiler's has an offset, which
follows from one event that was noted by both.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reference.bench.intervals import Interval, overlap, total, union
from reference.bench.profiling import computes

TraceEvent = dict[str, Any]

PHASE = "phase: "
CLOCK = "clock"
_KINDS = ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall", "barrier", "gather", "scatter", "reduce")
_BY_GLOO = {"reducescatter": "allreduce"}
_DIGITS = 3  # of milliseconds in the raw numbers, which would be long with more
_ON_GPU = "gpu_user_annotation"  # a span of the program again, on the GPU's timeline
_GAP = 0.01  # ms: shorter pauses between operators do not count


@dataclass(frozen=True)
class Span:
    """A named stretch of time, in milliseconds."""

    name: str
    start: float
    end: float

    @property
    def interval(self) -> Interval:
        """Start and end."""
        return self.start, self.end


@dataclass(frozen=True)
class Step:
    """One training step of one rank. All times are in milliseconds of one clock.

    Attributes:
        phases: forward, backward, exchange (after backward) and optimizer, in order.
        computed: when operators ran.
        launched: the calls that launched a collective, as the profiler saw them, in order.
        profiled: the collectives as the profiler saw them run. A busy backend begins one some time after its launch.
        observed: the collectives as the record saw them, from launch to known completion, in the order of launches.
        waits: when the program waited for a collective, as the record saw it.
        bytes: in the tensors that were passed to the collectives.
    """

    phases: Sequence[Span]
    computed: Sequence[Interval]
    launched: Sequence[Span]
    profiled: Sequence[Span]
    observed: Sequence[Span]
    waits: Sequence[Interval]
    bytes: int

    @property
    def milliseconds(self) -> float:
        """How long the step took."""
        return self.phases[-1].end - self.phases[0].start

    @property
    def communication(self) -> float:
        """How long at least one collective ran."""
        return total(span.interval for span in self.profiled)

    @property
    def hidden(self) -> float:
        """How long one ran while this rank computed."""
        return overlap((span.interval for span in self.profiled), self.computed)

    @property
    def overlap_percent(self) -> float | None:
        """The share of communication that ran while this rank computed; None without communication."""
        return 100 * self.hidden / self.communication if self.communication else None

    @property
    def waited(self) -> float:
        """How long the program waited for collectives, as the record saw it."""
        return total(self.waits)

    @property
    def launches_agree(self) -> bool:
        """Whether profiler and record saw the same collectives launched, in the same order."""
        launched, made = ([_kind(span.name) for span in spans] for spans in (self.launched, self.observed))
        return launched == made

    @property
    def agree(self) -> bool:
        """Whether profiler and record saw the same collectives, launched in the same order, and all of them running.

        gloo runs a reduce-scatter as an all-reduce of the whole tensor.
        """
        ran, made = ([_kind(span.name) for span in spans] for spans in (self.profiled, self.observed))
        run_as = Counter(_BY_GLOO.get(kind, kind) for kind in made)
        return self.launches_agree and Counter(ran) in (Counter(made), run_as)

    @property
    def launch_differences(self) -> list[float]:
        """By how much the two disagree about when each collective was launched, in milliseconds."""
        pairs = zip(self.launched, self.observed, strict=False)
        return [abs(seen.start - made.start) for seen, made in pairs]

    def shifted(self, by: float) -> "Step":
        """The same step, later by so many milliseconds; times are rounded to microseconds."""
        return self._made_of(asdict(self), by)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> "Step":
        """The step that `dataclasses.asdict` took apart."""
        return cls._made_of(plain, 0)

    @classmethod
    def _made_of(cls, plain: Mapping[str, Any], by: float) -> "Step":
        def at(time: float) -> float:
            return round(time + by, _DIGITS)

        parts: dict[str, Any] = {
            name: [Span(span["name"], at(span["start"]), at(span["end"])) for span in plain[name]] for name in _SPANS
        }
        parts |= {name: [(at(start), at(end)) for start, end in plain[name]] for name in _INTERVALS}
        return cls(**parts, bytes=plain["bytes"])


_SPANS, _INTERVALS = ("phases", "launched", "profiled", "observed"), ("computed", "waits")


def read_step(profiler: Iterable[TraceEvent], record: Iterable[TraceEvent], clock: float) -> Step:
    """The step in the events of the two traces of one rank.

    Args:
        profiler: events of torch's profiler; spans named `phase: NAME`, and one named `clock`. Those before it, from
            the start of the profiler, do not belong to the step.
        record: events of the observed record.
        clock: the monotonic time at which the span `clock` began, in microseconds.
    """
    seen = [event for event in profiler if event.get("ph") == "X" and event.get("cat") != _ON_GPU]
    mark = mark_of(seen)
    mine = [{**event, "ts": event["ts"] - mark + clock} for event in seen if event["ts"] >= mark]
    made, on_gpu = list(record), any(event.get("cat") == "kernel" for event in mine)
    operations = [event for event in made if event.get("cat") == "operation"]
    phases = _spans(event for event in mine if event["name"].startswith(PHASE))
    return Step(
        phases=[Span(span.name.removeprefix(PHASE), span.start, span.end) for span in phases],
        computed=without_gaps((_span(event).interval for event in mine if _computes(event, on_gpu=on_gpu)), _GAP),
        launched=_spans(event for event in mine if event["name"].startswith("c10d::")),
        profiled=_spans(event for event in mine if _communicates(event)),
        observed=[Span(span.name.partition(" ")[0], span.start, span.end) for span in _spans(operations)],
        waits=[_span(event).interval for event in made if event.get("cat") == "wait"],
        bytes=sum(event["args"]["bytes"] for event in operations),
    )


def mark_of(profiler: Iterable[TraceEvent]) -> float:
    """The profiler's time of the span `clock`, in microseconds."""
    return min(float(event["ts"]) for event in profiler if event.get("ph") == "X" and event.get("name") == CLOCK)


def of_rank(events: Iterable[TraceEvent], rank: int, shift: float) -> Iterator[TraceEvent]:
    """The profiler's events as a part of a trace of all ranks: the process is the rank, times are later by `shift`."""
    yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    for event in events:
        if event.get("ph") == "X" or event.get("name") in {"thread_name", "thread_sort_index"}:
            yield {**event, "pid": rank, "ts": event.get("ts", 0.0) + shift}


def without_gaps(intervals: Iterable[Interval], longest: float) -> list[Interval]:
    """The union of intervals, in which pauses of at most `longest` are closed."""
    return [(start, end - longest) for start, end in union((start, end + longest) for start, end in intervals)]


def _computes(event: TraceEvent, *, on_gpu: bool) -> bool:
    """Whether an event is an operator that computes; autograd's and c10d's only call others, or wait."""
    if on_gpu:
        return event.get("cat") == "kernel" and not _communicates(event)
    return event.get("cat") == "cpu_op" and computes(event["name"])


def _communicates(event: TraceEvent) -> bool:
    """Whether an event is a collective that runs: in a thread of gloo, or as a kernel of NCCL."""
    name = event["name"].lower()
    return bool(name.startswith("gloo:") or (event.get("cat") == "kernel" and name.startswith("nccl")))


def _span(event: TraceEvent) -> Span:
    """An event's name and time, in milliseconds."""
    return Span(event["name"], event["ts"] / 1e3, (event["ts"] + event["dur"]) / 1e3)


def _spans(events: Iterable[TraceEvent]) -> list[Span]:
    return sorted(map(_span, events), key=lambda span: span.start)


def _kind(name: str) -> str:
    """The kind of a collective, whoever named it: `all_gather_into_tensor` and `c10d::_allgather_base_` are one."""
    letters = "".join(filter(str.isalpha, name.partition(":")[2] or name)).lower()
    return next((kind for kind in _KINDS if kind in letters), letters)
