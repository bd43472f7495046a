"""What became of a rank's run: the outcome that its answer, or its death, amounts to."""

import signal
from typing import Any

from pytest_ddp.member import Member
from pytest_ddp.messages import Answer
from pytest_ddp.outcome import Died, Outcome, Raised, Returned, Skipped

_RAN_ON = "closed its connection to the test run, ran on, and was ended"


def last_words(member: Member, seconds: float) -> dict[str, Any]:
    """Return what every outcome of a rank tells."""
    return {
        "rank": member.rank,
        "seconds": seconds,
        "output": member.output,
        "collectives": member.collectives,
    }


def answered(member: Member, answer: Answer) -> Outcome:
    """Return the outcome that a rank's answer says."""
    words = last_words(member, answer.seconds)
    if answer.outcome == "returned":
        return Returned(**words, body=answer.body)
    if answer.outcome == "skipped":
        return Skipped(**words, reason=answer.message, body=answer.body)
    return Raised(**words, kind=answer.kind, message=answer.message, traceback=answer.traceback, body=answer.body)


def died(member: Member, seconds: float, code: int | None, *, ran_on: bool) -> Died:
    """Return the outcome of a rank whose connection ended: by its process's end, or while that ran on."""
    known = {**last_words(member, seconds), "stack": member.stack, "last_words": member.last_words}
    if ran_on:
        return Died(**{**known, "last_words": _RAN_ON})
    if code is not None and code < 0:
        return Died(**known, signal=_signal_name(-code))
    return Died(**known, exit_code=code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
