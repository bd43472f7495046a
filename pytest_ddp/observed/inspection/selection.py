"""Operations selected from a record."""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import torch
from torch.distributed import ProcessGroup

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.inspection.assertions import Assertions
from pytest_ddp.observed.recording.record import Record
from pytest_ddp.operations.table import NAMES


class Selection(Assertions):
    """A fixed set of this rank's operations, each in its current state."""

    def __init__(self, record: Record, entries: Sequence[Entry], selected: str) -> None:
        self._record = record
        self._chosen = tuple(entries)
        self.selected = selected

    @property
    def entries(self) -> list[Entry]:
        """The operations; one that was cleared from the record is in the state it had when it was selected."""
        current = {entry.number: entry for entry in self._record.entries}
        return [current.get(entry.number, entry) for entry in self._chosen]

    def select(
        self,
        *ops: str,
        group: ProcessGroup | str | None = None,
        dtype: torch.dtype | str | None = None,
        inside_backward: bool | None = None,
    ) -> "Selection":
        """Return the operations that match all arguments.

        Args:
            ops: names as in torch.distributed ("all_reduce", "send", ...), of which one must match; () matches all.
            group: the process group, or its name.
            dtype: of the tensors.
            inside_backward: whether the operation was launched while a backward pass was running.

        Raises:
            UsageError: if a name is not that of an operation.
        """
        unknown = [op for op in ops if op not in NAMES]
        if unknown:
            raise UsageError(f"no operation is named {unknown[0]!r}; the names are {', '.join(sorted(NAMES))}")
        name = group.group_name if isinstance(group, ProcessGroup) else group
        kind = None if dtype is None else str(dtype).removeprefix("torch.")
        matching = [
            entry
            for entry in self.entries
            if (not ops or entry.op in ops)
            and name in {None, entry.group}
            and kind in {None, entry.dtype}
            and inside_backward in {None, entry.launched.backward is not None}
        ]
        added = _filter_text(ops, group=name, dtype=kind, inside_backward=inside_backward)
        return Selection(self._record, matching, f"{self.selected} {added}".strip())

    def set_entries(self, entries: Iterable[Entry]) -> None:
        """Make this the selection of these operations."""
        self._chosen = tuple(entries)

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> "Selection": ...

    def __getitem__(self, index: int | slice) -> "Entry | Selection":
        if isinstance(index, int):
            return self.entries[index]
        return Selection(self._record, self.entries[index], f"{self.selected}{_slice_text(index)}".strip())

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)  # a Sequence's own would read the record at each index

    def __len__(self) -> int:
        return len(self.entries)

    def __reduce__(self) -> tuple[type[list[Entry]], tuple[list[Entry]]]:
        """Pickle as a list of entries, because the record cannot leave its rank."""
        return list, (self.entries,)

    def __repr__(self) -> str:
        lines = "".join(f"\n  {entry}" for entry in self.entries)
        return f"<{len(self)} operations{':' if lines else ''}{lines}>"


def _filter_text(ops: tuple[str, ...], *, group: str | None, dtype: str | None, inside_backward: bool | None) -> str:
    words = [" or ".join(ops)] if ops else []
    words += [f"in group {group!r}"] if group is not None else []
    words += [f"of {dtype}"] if dtype is not None else []
    words += [] if inside_backward is None else [f"launched {'inside' if inside_backward else 'outside'} backward"]
    return " ".join(words)


def _slice_text(index: slice) -> str:
    parts = [index.start, index.stop] if index.step is None else [index.start, index.stop, index.step]
    return f"[{':'.join('' if part is None else str(part) for part in parts)}]"
