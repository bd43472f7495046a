"""The record that this process writes, if its process group is observed."""

from typing import TYPE_CHECKING

from pytest_ddp.errors import UsageError

if TYPE_CHECKING:
    from pytest_ddp.observed.recording.record import Record

_record: "Record | None" = None
_NOT_OBSERVED = (
    "this test's collectives are not observed, so they were not recorded: write @distributed(observe=True) or "
    "ddp_ranks(observe=True)"
)


def record() -> "Record":
    """Return the record of the running test; raise UsageError if the test is not observed."""
    if _record is None:
        raise UsageError(_NOT_OBSERVED)
    return _record


def set_record(record: "Record | None") -> None:
    """Make `record` the one of this process."""
    global _record  # noqa: PLW0603  a process has one default group, so one record
    _record = record


def is_observed() -> bool:
    """Whether this process has a record."""
    return _record is not None


# Without a record, the functions below do nothing.


def reset() -> None:
    """Reset the record for the next test."""
    if _record is not None:
        _record.reset()


def timeline() -> str:
    """Return a short timeline of the running test, or ""."""
    if _record is None:
        return ""
    from pytest_ddp.observed.timeline import Timeline  # noqa: PLC0415  only when a test has failed

    return Timeline(_record.entries, _record.events).short()


def unmatched_operations() -> list[str]:
    """Describe the operations in which other ranks did not take part; each is reported once."""
    return [] if _record is None else _record.monitor.unmatched_operations()
