"""Assertions about the operations of a rank.

A failed assertion lists the operations that it saw. It does not name its rank: the report does, and prints a message
that several ranks have in common only once.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence

from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.inspection.compare_ranks import assert_same
from pytest_ddp.observed.inspection.expectations import (
    Bounds,
    first_wait_text,
    launch_text,
    list_text,
    operations_text,
)
from pytest_ddp.observed.inspection.overlap import BackwardPass, backward_passes, launching_pass
from pytest_ddp.observed.recording.record import Record


class Assertions(Sequence[Entry]):
    """Operations, with assertions about them. An assertion about each operation fails if there are none."""

    _record: Record

    @property
    @abstractmethod
    def selected(self) -> str:
        """Which operations these are, in words; empty if they are all operations of the record."""

    def assert_count(
        self, exactly: int | None = None, *, at_least: int | None = None, at_most: int | None = None
    ) -> None:
        """Assert the number of operations."""
        __tracebackhide__ = True
        bounds = Bounds(exactly, at_least, at_most)
        if not bounds.allow(len(self)):
            seen = f"saw {len(self)}{':' if self else ''}{list_text(self)}"
            raise AssertionError(f"expected {bounds} {operations_text(self.selected)}, {seen}")

    def assert_bytes(
        self, exactly: int | None = None, *, at_least: int | None = None, at_most: int | None = None
    ) -> None:
        """Assert the number of bytes in the tensors that this rank passed to the operations.

        How many of these bytes a backend sends depends on its algorithm.
        """
        __tracebackhide__ = True
        bounds = Bounds(exactly, at_least, at_most)
        seen = sum(entry.bytes for entry in self)
        if not bounds.allow(seen):
            listed = list_text(self, lambda entry: f": {entry.bytes:,} bytes")
            raise AssertionError(f"expected {bounds} bytes in {operations_text(self.selected)}, saw {seen:,}:{listed}")

    def assert_launched_inside_backward(self) -> None:
        """Assert that each was launched while a backward pass was running."""
        __tracebackhide__ = True
        self._assert_each("launched inside backward", lambda entry: entry.launched.backward is not None, launch_text)

    def assert_launched_before_last_gradient(self) -> None:
        """Assert that each was launched inside backward, before the last gradient was ready."""
        __tracebackhide__ = True
        passes = backward_passes(self._record.events)

        def early(entry: Entry) -> bool:
            backward = launching_pass(entry, passes)
            return backward is not None and entry.launched.time < backward.last_gradient

        self._assert_each("launched before the last gradient was ready", early, launch_text)

    def assert_waited(self) -> None:
        """Assert that each was waited for."""
        __tracebackhide__ = True
        self._assert_each("waited for", lambda entry: entry.waited is not None, first_wait_text)

    def assert_waited_after_last_gradient(self) -> None:
        """Assert that each was waited for, and only after backward had computed all gradients."""
        __tracebackhide__ = True
        self._assert_waited_after("waited for after the last gradient was ready", lambda one: one.last_gradient)

    def assert_waited_after_backward(self) -> None:
        """Assert that each was waited for, and only after the backward pass that launched it had returned."""
        __tracebackhide__ = True
        self._assert_waited_after("waited for after backward had returned", lambda one: one.returned)

    def assert_same_on_all_ranks(self) -> None:
        """Assert that all ranks entered the same collectives in the same order; all ranks must call this.

        Two ranks are compared in the groups that both belong to. Sends and receives are not compared. A selection is
        compared with the other ranks' selections, so all ranks must select alike.
        """
        __tracebackhide__ = True
        assert_same(list(self), self.selected, self._record.monitor)

    def _assert_waited_after(self, promise: str, end: Callable[[BackwardPass], float]) -> None:
        __tracebackhide__ = True
        passes = backward_passes(self._record.events)

        def late(entry: Entry) -> bool:
            backward = launching_pass(entry, passes)
            return entry.waited is not None and (backward is None or entry.waited.time > end(backward))

        self._assert_each(promise, late, first_wait_text)

    def _assert_each(self, promise: str, holds: Callable[[Entry], bool], describe: Callable[[Entry], str]) -> None:
        __tracebackhide__ = True
        operations = operations_text(self.selected)
        if not self:
            raise AssertionError(f"expected {operations} that were {promise}, saw none")
        wrong = [entry for entry in self if not holds(entry)]
        if wrong:
            seen = f"{len(wrong)} of {len(self)} {'was' if len(wrong) == 1 else 'were'} not"
            raise AssertionError(f"expected that all {operations} were {promise}; {seen}:{list_text(wrong, describe)}")
