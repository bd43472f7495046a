"""What the packages above can plug into a record: a monitor of its operations, and a gate that issues them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.recording.call import Call


class Monitor:
    """Is called, on the rank, before and after the steps of an operation. This base class does nothing."""

    def before_operation(self, entry: Entry) -> None:
        """Handle an operation that the rank is about to issue; an exception raised here prevents it."""

    def wait_began(self, entries: Sequence[Entry], timeout: timedelta | None) -> None:
        """Handle a thread that begins to wait for operations, at most `timeout`."""

    def wait_ended(self, entries: Sequence[Entry]) -> None:
        """Handle a thread whose wait returned or raised."""

    @contextmanager
    def waiting(self, entries: Sequence[Entry], timeout: timedelta | None = None) -> Iterator[None]:
        """Report a wait while the block runs."""
        self.wait_began(entries, timeout)
        try:
            yield
        finally:
            self.wait_ended(entries)

    def unmatched_operations(self) -> list[str]:
        """Describe the operations of this rank in which other ranks did not take part; each is reported once."""
        return []


class Gate:
    """Issues operations. This base class issues each at once and holds nothing back."""

    def issue(self, entry: Entry, call: Call) -> Any:  # noqa: ARG002  subclasses use it
        """Issue an operation; return the Work to wait for, or None if the operation is complete."""
        return call.issue()

    def coalesce(self, entries: Sequence[Entry], work: Any) -> Any:  # noqa: ARG002  likewise
        """Return the Work of operations that the real group coalesced; `work` is the real group's."""
        return work
