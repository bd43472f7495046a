"""Finds out whether two failures have one cause, so that a report explains the cause once."""

import re

from conformance.diagnosis.gradients import UNKNOWN
from conformance.execution.outcome import Broken, Execution
from pytest_ddp.outcomes.outcome import Raised

_LARGER = re.compile(r"^A larger model, .*?, shows more\. ")
_WHERE = re.compile(r" \(on rank \d+, [^)]*\)|\bat step \d+|\bon ranks? \d+(, \d+)*|\b\d+ times", re.IGNORECASE)


def cause_of_failure(advice: str, execution: Execution) -> str:
    """Return the advice without the ranks, steps and parameters that it shows on: the same for failures of one cause.

    It is empty if the cause is unknown: advice on ranks that died or hung fits several causes.
    """
    if UNKNOWN in advice or (isinstance(execution, Broken) and not isinstance(execution.root, Raised)):
        return ""
    return _WHERE.sub("...", _LARGER.sub("", advice))
