"""Who looks on while a rank communicates, and who holds its operations back: by default nobody."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.recording.operations import Call


class Monitor:
    """Is told, on the rank, what the rank is about to do; this one looks away."""

    def before_operation(self, entry: Entry) -> None:
        """Hear that the rank is about to issue an operation; raise to keep it from that."""

    def wait_began(self, entries: Sequence[Entry], timeout: timedelta | None) -> None:
        """Hear that a thread of the rank is about to wait until these operations are over, or for so long."""

    def wait_ended(self, entries: Sequence[Entry]) -> None:
        """Hear that the wait is over, one way or another."""

    def run_began(self) -> None:
        """Hear that the rank begins its part of a run."""

    def run_ended(self) -> None:
        """Hear that the rank has finished its part of a run."""

    def unmatched_operations(self) -> list[str]:
        """Return in words what this rank has begun and others have not taken part in, each only once."""
        return []


class Gate:
    """Issues operations; this one lets everything through."""

    def issue(self, entry: Entry, call: Call) -> Any:  # noqa: ARG002  for gates that hold back
        """Issue an operation; return the Work to wait for, or None if it is over."""
        return call.issue()

    def coalesced(self, entries: Sequence[Entry], work: Any) -> Any:  # noqa: ARG002  likewise
        """Return the Work to wait for of operations that were issued one by one, given that of the real group."""
        return work
