"""What a test may expect of the operations of its rank.

Whatever is not as expected raises an AssertionError that lists what was seen. Which rank it is, the report says: what
all ranks have in common is then told once.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence

from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.inspection.compare_ranks import assert_same
from pytest_ddp.observed.inspection.expectations import Limits, launched, listed, operations, waited
from pytest_ddp.observed.inspection.overlap import Pass, pass_of, passes
from pytest_ddp.observed.recording.record import Record


class Assertions(Sequence[Entry]):
    """Operations of which something may be expected; what is expected of each of them, none at all do not meet."""

    _record: Record

    @property
    @abstractmethod
    def selected(self) -> str:
        """In words, which operations these are of all that were entered; empty for all."""

    def assert_count(
        self, exactly: int | None = None, *, at_least: int | None = None, at_most: int | None = None
    ) -> None:
        """Expect so many operations."""
        __tracebackhide__ = True
        limits = Limits(exactly, at_least, at_most)
        if not limits.admit(len(self)):
            seen = f"saw {len(self)}{':' if self else ''}{listed(self)}"
            raise AssertionError(f"expected {limits} {operations(self.selected)}, {seen}")

    def assert_bytes(
        self, exactly: int | None = None, *, at_least: int | None = None, at_most: int | None = None
    ) -> None:
        """Expect that the tensors that this rank handed over have so many bytes together.

        How many of them a backend moves, and how often, depends on its algorithm.
        """
        __tracebackhide__ = True
        limits = Limits(exactly, at_least, at_most)
        seen = sum(entry.bytes for entry in self)
        if not limits.admit(seen):
            what = listed(self, lambda entry: f": {entry.bytes:,} bytes")
            raise AssertionError(f"expected {limits} bytes in {operations(self.selected)}, saw {seen:,}:{what}")

    def assert_launched_inside_backward(self) -> None:
        """Expect that each was launched before backward returned: while a backward pass was running."""
        __tracebackhide__ = True
        self._assert_each("launched inside backward", lambda entry: entry.launched.backward is not None, launched)

    def assert_launched_before_last_gradient(self) -> None:
        """Expect that each was launched inside backward when at least one gradient was still to come."""
        __tracebackhide__ = True
        found = passes(self._record.events)

        def early(entry: Entry) -> bool:
            backward = pass_of(entry, found)
            return backward is not None and entry.launched.time < backward.last_gradient

        self._assert_each("launched before the last gradient was ready", early, launched)

    def assert_waited(self) -> None:
        """Expect that somebody has waited for each."""
        __tracebackhide__ = True
        self._assert_each("waited for", lambda entry: entry.waited is not None, waited)

    def assert_waited_after_last_gradient(self) -> None:
        """Expect that each was waited for, but not before backward had computed all gradients: nothing held it up."""
        __tracebackhide__ = True
        self._assert_waited_after("waited for after the last gradient was ready", lambda one: one.last_gradient)

    def assert_waited_after_backward(self) -> None:
        """Expect that each was waited for, but not before the backward pass that launched it had returned."""
        __tracebackhide__ = True
        self._assert_waited_after("waited for after backward had returned", lambda one: one.returned)

    def assert_same_on_all_ranks(self) -> None:
        """Expect that all ranks have entered the same collectives in the same order; all ranks must call this.

        Of any two ranks, the collectives of all groups that both belong to are compared; sends and receives are not.
        Selections are compared as they are: select alike on all ranks.
        """
        __tracebackhide__ = True
        assert_same(list(self), self.selected, self._record.monitor)

    def _assert_waited_after(self, promise: str, end: Callable[[Pass], float]) -> None:
        __tracebackhide__ = True
        found = passes(self._record.events)

        def late(entry: Entry) -> bool:
            backward = pass_of(entry, found)
            return entry.waited is not None and (backward is None or entry.waited.time > end(backward))

        self._assert_each(promise, late, waited)

    def _assert_each(self, promise: str, holds: Callable[[Entry], bool], told: Callable[[Entry], str]) -> None:
        __tracebackhide__ = True
        these = operations(self.selected)
        if not self:
            raise AssertionError(f"expected {these} that were {promise}, saw none")
        wrong = [entry for entry in self if not holds(entry)]
        if wrong:
            seen = f"{len(wrong)} of {len(self)} {'was' if len(wrong) == 1 else 'were'} not:{listed(wrong, told)}"
            raise AssertionError(f"expected that all {these} were {promise}; {seen}")
