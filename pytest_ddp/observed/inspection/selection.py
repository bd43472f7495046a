"""Operations picked from a record."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch.distributed import ProcessGroup

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.inspection.assertions import Assertions
from pytest_ddp.observed.recording.record import Record
from pytest_ddp.operations.table import NAMES


class Selection(Assertions):
    """Some operations of this rank: always the same ones, each as it stands at the moment."""

    def __init__(self, record: Record, entries: Sequence[Entry], selected: str) -> None:
        self._record = record
        self._chosen = tuple(entries)
        self._selected = selected

    @property
    def selected(self) -> str:
        """In words, which operations these are."""
        return self._selected

    @property
    def entries(self) -> list[Entry]:
        """The operations; one that the record has forgotten since, as it was."""
        now = {entry.number: entry for entry in self._record.entries}
        return [now.get(entry.number, entry) for entry in self._chosen]

    def hold(self, entries: Iterable[Entry]) -> None:
        """Be a selection of these operations from now on."""
        self._chosen = tuple(entries)

    def select(
        self,
        *ops: str,
        group: ProcessGroup | str | None = None,
        dtype: torch.dtype | str | None = None,
        inside_backward: bool | None = None,
    ) -> "Selection":
        """Return the operations of one kind.

        Args:
            ops: named as in torch.distributed: "all_reduce", "send", ...; several mean any of them, none means all.
            group: the process group, or its name.
            dtype: of the tensors.
            inside_backward: whether launched while a backward pass was running.

        Raises:
            UsageError: when there is no operation of that name.
        """
        name = group.group_name if isinstance(group, ProcessGroup) else group
        choice = Choice(ops, name, None if dtype is None else str(dtype).removeprefix("torch."), inside_backward)
        chosen = [entry for entry in self.entries if choice.takes(entry)]
        return Selection(self._record, chosen, " ".join(filter(None, [self.selected, str(choice)])))

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> "Selection": ...

    def __getitem__(self, index: int | slice) -> "Entry | Selection":
        if isinstance(index, int):
            return self.entries[index]
        return Selection(self._record, self.entries[index], f"{self.selected}{_slice_text(index)}".strip())

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)  # read once, not once for each index

    def __len__(self) -> int:
        return len(self.entries)

    def __reduce__(self) -> tuple[type[list[Entry]], tuple[list[Entry]]]:
        """Travel as a list: a record stays on its rank."""
        return list, (self.entries,)

    def __repr__(self) -> str:
        lines = "".join(f"\n  {entry}" for entry in self.entries)
        return f"<{len(self)} operations{':' if lines else ''}{lines}>"


def _slice_text(index: slice) -> str:
    parts = [index.start, index.stop] if index.step is None else [index.start, index.stop, index.step]
    return f"[{':'.join('' if part is None else str(part) for part in parts)}]"


# Which operations a test wants to look at.


@dataclass(frozen=True)
class Choice:
    """What an operation must be to be chosen; None leaves it open.

    Attributes:
        ops: any of these operations; all for ().
        group: the name of its process group.
        dtype: of its tensors, such as "float32".
        inside_backward: whether it was launched while a backward pass ran.
    """

    ops: tuple[str, ...] = ()
    group: str | None = None
    dtype: str | None = None
    inside_backward: bool | None = None

    def __post_init__(self) -> None:
        unknown = [op for op in self.ops if op not in NAMES]
        if unknown:
            raise UsageError(f"no operation is called {unknown[0]!r}; there are {', '.join(sorted(NAMES))}")

    def takes(self, entry: Entry) -> bool:
        """Whether an operation is chosen."""
        return (
            (not self.ops or entry.op in self.ops)
            and self.group in {None, entry.group}
            and self.dtype in {None, entry.dtype}
            and self.inside_backward in {None, entry.launched.backward is not None}
        )

    def __str__(self) -> str:
        words = [" or ".join(self.ops)] if self.ops else []
        words += [f"in group {self.group!r}"] if self.group is not None else []
        words += [f"of {self.dtype}"] if self.dtype is not None else []
        if self.inside_backward is not None:
            words.append(f"launched {'inside' if self.inside_backward else 'outside'} backward")
        return " ".join(words)
