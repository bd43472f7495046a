"""Which record this process writes, if its process group is observed."""

from typing import TYPE_CHECKING

from pytest_ddp.errors import UsageError

if TYPE_CHECKING:
    from pytest_ddp.observed.recording.interfaces import Monitor
    from pytest_ddp.observed.recording.record import Record

_record: "Record | None" = None
_NOT_OBSERVED = (
    "this test's collectives are not observed, so there is no record of them: write @distributed(observe=True), or "
    "ddp_ranks(observe=True)"
)


def record() -> "Record":
    """Return the record of the test at hand; raise UsageError when it is not observed."""
    if _record is None:
        raise UsageError(_NOT_OBSERVED)
    return _record


def is_observed() -> bool:
    """Whether there is a record."""
    return _record is not None


def set_record(record: "Record | None") -> None:
    """Let `record` be this process's."""
    global _record  # noqa: PLW0603  a process has one default group, so one record
    _record = record


def is_monitored_by(monitor: "Monitor") -> bool:
    """Whether this is still who looks on."""
    return _record is not None and _record.monitor is monitor


def run_began() -> None:
    """Say that this rank begins its part of a run; nothing happens where nothing is observed."""
    if _record is not None:
        _record.monitor.run_began()


def run_ended() -> None:
    """Say that this rank's part of a run is over; nothing happens where nothing is observed."""
    if _record is not None:
        _record.monitor.run_ended()


def timeline() -> str:
    """Return what happened in the test at hand as a short table; "" where nothing is observed."""
    if _record is None:
        return ""
    from pytest_ddp.observed.timeline import Timeline  # noqa: PLC0415  only when a test has failed

    return Timeline(_record.entries, _record.events).short()


def unmatched_operations() -> list[str]:
    """Return in words what this rank has begun and others have not taken part in, each only once."""
    return [] if _record is None else _record.monitor.unmatched_operations()


def reset() -> None:
    """Begin the record anew, for the next test; nothing happens where nothing is observed."""
    if _record is not None:
        _record.reset()
