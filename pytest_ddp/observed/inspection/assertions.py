"""Assertions about the operations of a rank.

A failed assertion lists the operations that it saw. It does not name its rank: the report does, and prints a message
that several ranks have in common only once.
"""

from collections.abc import Callable, Sequence

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.events import Entry, Moment
from pytest_ddp.observed.inspection.compare_ranks import assert_same
from pytest_ddp.observed.inspection.overlap import BackwardPass, backward_passes, launching_pass
from pytest_ddp.observed.recording.record import Record

_LISTED = 10  # operations at either end of a long list


class Assertions(Sequence[Entry]):
    """Operations, with assertions about them. An assertion about each operation fails if there are none.

    Attributes:
        selected: which operations these are, in words; empty if they are all operations of the record.
    """

    selected: str
    _record: Record

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

        def holds(entry: Entry, backward: BackwardPass | None) -> bool:
            return backward is not None and entry.launched.time < backward.last_gradient

        self._assert_each("launched before the last gradient was ready", holds, _launch_text)

    def assert_waited(self) -> None:
        """Assert that each was waited for."""
        __tracebackhide__ = True
        self._assert_each("waited for", lambda entry, _: entry.waited is not None, _first_wait_text)

    def assert_waited_after_last_gradient(self) -> None:
        """Assert that each was waited for, and only after backward had computed all gradients."""
        __tracebackhide__ = True

        def holds(entry: Entry, backward: BackwardPass | None) -> bool:
            return entry.waited is not None and (backward is None or entry.waited.time > backward.last_gradient)

        self._assert_each("waited for after the last gradient was ready", holds, _first_wait_text)

    def assert_waited_after_backward(self) -> None:
        """Assert that each was waited for, and only after the backward pass that launched it had returned."""
        __tracebackhide__ = True

        def holds(entry: Entry, backward: BackwardPass | None) -> bool:
            return entry.waited is not None and (backward is None or entry.waited.time > backward.returned)

        self._assert_each("waited for after backward had returned", holds, _first_wait_text)

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


def _first_wait_text(entry: Entry) -> str:
    return "never waited for" if entry.waited is None else f"first waited for {_moment_text(entry.waited)}"


def _moment_text(moment: Moment) -> str:
    if moment.backward is None:
        return "outside backward"
    return f"inside backward {moment.backward}, with {moment.ready} of {moment.expected} gradients ready"
