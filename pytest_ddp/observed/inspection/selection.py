"""Operations selected from a record, and assertions about them.

A failed assertion lists the operations that it saw. It does not name its rank: the report does, and prints a message
that several ranks have in common only once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import torch
from torch.distributed import ProcessGroup

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.events import Entry, Moment
from pytest_ddp.observed.inspection.compare_ranks import assert_same
from pytest_ddp.observed.inspection.overlap import BackwardPass, backward_passes, launching_pass
from pytest_ddp.observed.recording.record import Record
from pytest_ddp.operations.table import NAMES

_LISTED = 10  # operations at either end of a long list


class Selection(Sequence[Entry]):
    """A fixed set of this rank's operations, each in its current state.

    An assertion about each operation fails if there are none.

    Attributes:
        chosen: the operations, in the state that they had when they were selected.
        selected: which operations these are, in words; empty if they are all operations of the record.
    """

    def __init__(self, record: Record, entries: Sequence[Entry], selected: str) -> None:
        self._record = record
        self.chosen = entries
        self.selected = selected

    @property
    def entries(self) -> list[Entry]:
        """The operations; one that was cleared from the record is in the state it had when it was selected."""
        current = {entry.number: entry for entry in self._record.entries}
        return [current.get(entry.number, entry) for entry in self.chosen]

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
        words = [self.selected, " or ".join(ops)]
        words += [] if name is None else [f"in group {name!r}"]
        words += [] if kind is None else [f"of {kind}"]
        words += [] if inside_backward is None else [f"launched {'inside' if inside_backward else 'outside'} backward"]
        return Selection(self._record, matching, " ".join(filter(None, words)))

    def assert_count(
        self, exactly: int | None = None, *, at_least: int | None = None, at_most: int | None = None
    ) -> None:
        """Assert the number of operations."""
        __tracebackhide__ = True
        if expected := _unmet(len(self), exactly, at_least, at_most):
            seen = f"saw {len(self)}{':' if self else ''}{_listed(self)}"
            raise AssertionError(f"expected {expected} {self._text}, {seen}")

    def assert_bytes(
        self, exactly: int | None = None, *, at_least: int | None = None, at_most: int | None = None
    ) -> None:
        """Assert the number of bytes in the tensors that this rank passed to the operations.

        How many of these bytes a backend sends depends on its algorithm.
        """
        __tracebackhide__ = True
        seen = sum(entry.bytes for entry in self)
        if expected := _unmet(seen, exactly, at_least, at_most):
            listed = _listed(self, lambda entry: f"{entry.bytes:,} bytes")
            raise AssertionError(f"expected {expected} bytes in {self._text}, saw {seen:,}:{listed}")

    def assert_launched_inside_backward(self) -> None:
        """Assert that each was launched while a backward pass was running."""
        __tracebackhide__ = True
        self._assert_each("launched inside backward", lambda _, backward: backward is not None, _launch_text)

    def assert_launched_before_last_gradient(self) -> None:
        """Assert that each was launched inside backward, before the last gradient was ready."""
        __tracebackhide__ = True
        promise = "launched before the last gradient was ready"
        self._assert_each(promise, lambda e, b: b is not None and e.launched.time < b.last_gradient, _launch_text)

    def assert_waited(self) -> None:
        """Assert that each was waited for."""
        __tracebackhide__ = True
        self._assert_each_waited("waited for", lambda _: 0)

    def assert_waited_after_last_gradient(self) -> None:
        """Assert that each was waited for, and only after backward had computed all gradients."""
        __tracebackhide__ = True
        promise = "waited for after the last gradient was ready"
        self._assert_each_waited(promise, lambda backward: backward.last_gradient)

    def assert_waited_after_backward(self) -> None:
        """Assert that each was waited for, and only after the backward pass that launched it had returned."""
        __tracebackhide__ = True
        self._assert_each_waited("waited for after backward had returned", lambda backward: backward.returned)

    def assert_same_on_all_ranks(self) -> None:
        """Assert that all ranks entered the same collectives in the same order; all ranks must call this.

        Two ranks are compared in the groups that both belong to. Sends and receives are not compared. A selection is
        compared with the other ranks' selections, so all ranks must select alike.
        """
        __tracebackhide__ = True
        assert_same(list(self), self._text, self._record)

    @property
    def _text(self) -> str:
        return f"operations ({self.selected})" if self.selected else "operations"

    def _assert_each_waited(self, promise: str, earliest: Callable[[BackwardPass], float]) -> None:
        """Assert that each was waited for, and later than `earliest` of the backward pass that launched it."""
        __tracebackhide__ = True

        def holds(entry: Entry, backward: BackwardPass | None) -> bool:
            return entry.waited is not None and (backward is None or entry.waited.time > earliest(backward))

        self._assert_each(promise, holds, _wait_text)

    def _assert_each(
        self, promise: str, holds: Callable[[Entry, BackwardPass | None], bool], describe: Callable[[Entry], str]
    ) -> None:
        """Assert that `holds` is true for each operation and the backward pass that launched it."""
        __tracebackhide__ = True
        if not self:
            raise AssertionError(f"expected {self._text} that were {promise}, saw none")
        passes = backward_passes(self._record.events)
        wrong = [entry for entry in self if not holds(entry, launching_pass(entry, passes))]
        if wrong:
            seen = f"{len(wrong)} of {len(self)} {'was' if len(wrong) == 1 else 'were'} not"
            raise AssertionError(f"expected that all {self._text} were {promise}; {seen}:{_listed(wrong, describe)}")

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> "Selection": ...

    def __getitem__(self, index: int | slice) -> "Entry | Selection":
        if isinstance(index, int):
            return self.entries[index]
        parts = [index.start, index.stop, *([] if index.step is None else [index.step])]
        text = ":".join("" if part is None else str(part) for part in parts)
        return Selection(self._record, self.entries[index], f"{self.selected}[{text}]")

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


def _unmet(seen: int, exactly: int | None, at_least: int | None, at_most: int | None) -> str:
    """Return the expected number in words if `seen` is not as expected, else ""; the bounds are inclusive."""
    if (exactly is None) == (at_least is None and at_most is None):
        raise UsageError(
            f"give an exact number, or at_least=, at_most= or both; got {exactly=}, {at_least=}, {at_most=}"
        )
    lower, upper = (at_least, at_most) if exactly is None else (exactly, exactly)
    if (lower is None or lower <= seen) and (upper is None or seen <= upper):
        return ""
    words = {"": exactly, "at least ": at_least, "at most ": at_most}
    return " and ".join(f"{word}{number:,}" for word, number in words.items() if number is not None)


def _listed(entries: Sequence[Entry], describe: Callable[[Entry], str] | None = None) -> str:
    """Return one line for each operation; the first and the last lines of a long list."""
    lines = [f"\n  {entry}{f': {describe(entry)}' if describe else ''}" for entry in entries]
    left_out = len(lines) - 2 * _LISTED
    if left_out > 0:
        lines[_LISTED:-_LISTED] = [f"\n  ... {left_out} operations left out ..."]
    return "".join(lines)


def _launch_text(entry: Entry) -> str:
    return f"launched {_moment_text(entry.launched)}"


def _wait_text(entry: Entry) -> str:
    return "never waited for" if entry.waited is None else f"first waited for {_moment_text(entry.waited)}"


def _moment_text(moment: Moment) -> str:
    if moment.backward is None:
        return "outside backward"
    return f"inside backward {moment.backward}, with {moment.ready} of {moment.expected} gradients ready"
