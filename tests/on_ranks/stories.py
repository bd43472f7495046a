"""Records written by hand, as text: one word for each step of a rank."""

from dataclasses import dataclass, field
from types import SimpleNamespace

from pytest_ddp.observed import (
    BackwardBegan,
    BackwardReturned,
    CollectiveCompleted,
    CollectiveLaunched,
    CollectiveWaited,
    Entry,
    Event,
    GradientReady,
    Moment,
)
from pytest_ddp.observed.inspection.selection import Selection


@dataclass
class Story:
    """The steps of a rank; each takes one tick of its clock and one microsecond.

    A step is "backward", "returned", "gradient", or a verb with an operation's name: "launch a", "wait a", "end a".
    """

    steps: str
    gradients: int = 2
    details: dict[str, dict[str, object]] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ready, self._running, self._backwards = 0, 0, 0
        for step in self.steps.split(", "):
            verb, _, name = step.partition(" ")
            getattr(self, f"_{verb}")(name)

    @property
    def selection(self) -> Selection:
        """All operations."""
        record = SimpleNamespace(entries=list(self.entries.values()), events=self.events)
        return Selection(record, record.entries, "")  # type: ignore[arg-type]  # no more of a record is read

    @property
    def nanoseconds(self) -> list[int]:
        return [1_000 * time for time in range(1, len(self.events) + 1)]

    def _moment(self) -> Moment:
        time = len(self.events) + 1
        return Moment(time, self._running, self._ready, self.gradients) if self._running else Moment(time)

    def _backward(self, _: str) -> None:
        self._backwards += 1
        self.events.append(BackwardBegan(len(self.events) + 1, self._backwards, "train.py:9", self.gradients))
        self._running, self._ready = self._backwards, 0

    def _gradient(self, name: str) -> None:
        self._ready += 1
        self.events.append(GradientReady(len(self.events) + 1, self._running, name or "weight"))

    def _returned(self, _: str) -> None:
        self.events.append(BackwardReturned(len(self.events) + 1, self._running))
        self._running = 0

    def _launch(self, name: str) -> None:
        number = len(self.entries) + 1
        plain = {"op": "all_reduce", "group": "0", "ranks": (0, 1), "shapes": ((4,),), "dtype": "float32", "bytes": 16}
        words = {"line": f"train.py:{number}", "asynchronous": True, **self.details.get(name, {})}
        entry = Entry(**{**plain, **words}, number=number, sequence=number, launched=self._moment())  # type: ignore[arg-type]
        self.entries[name] = entry
        self.events.append(CollectiveLaunched(len(self.events) + 1, number))

    def _wait(self, name: str) -> None:
        self._mark(name, "waited", CollectiveWaited)

    def _end(self, name: str) -> None:
        self._mark(name, "completed", CollectiveCompleted)

    def _mark(self, name: str, what: str, kind: type[CollectiveWaited | CollectiveCompleted]) -> None:
        entry = self.entries[name]
        self.entries[name] = Entry(**{**vars(entry), what: self._moment()})
        self.events.append(kind(len(self.events) + 1, entry.number))
