"""What `ddp.collectives` is: the record of the test at hand, as its test reads it."""

from collections.abc import Sequence
from typing import overload

from torch import nn

from pytest_ddp.observed.entry import Entry
from pytest_ddp.observed.events import Event
from pytest_ddp.observed.record import Record


class Collectives(Sequence[Entry]):
    """The operations that this rank has entered since the test began, its setup included, in order."""

    def __init__(self, record: Record) -> None:
        self._record = record

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything that happened, in the order of the clock: launches, waits, completions, gradients, backwards."""
        return tuple(self._record.events)

    def clear(self) -> None:
        """Forget what was recorded so far."""
        self._record.clear()

    def name(self, model: nn.Module) -> None:
        """Let events call the model's parameters by their names."""
        self._record.names.learn(model.named_parameters())

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...

    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        return self._record.entries[index]

    def __len__(self) -> int:
        return len(self._record.entries)

    def __repr__(self) -> str:
        lines = "".join(f"\n  {entry}" for entry in self)
        return f"<{len(self)} operations{':' if lines else ''}{lines}>"
