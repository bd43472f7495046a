"""An exception in the controller for one that stayed on a rank.

Plugins that look at `call.excinfo`, as pytest-rerunfailures does for `--only-rerun`, thus see in a distributed test
what they see in a plain one: the kind and the message, and what it was raised from.
"""

import builtins
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_ddp.outcomes.failure import RankFailure, failures, root_cause
from pytest_ddp.outcomes.outcome import Raised
from pytest_ddp.reporting.merge import PhaseResult
from pytest_ddp.reporting.skip_xfail import XPASS_STRICT

_DIRECT_CAUSE = "direct cause"  # of the sentences between tracebacks, the one that stands for `raise ... from ...`


def root_exception(result: PhaseResult) -> pytest.ExceptionInfo[BaseException] | None:
    """Return an exception like the root cause's; None where no rank failed, or failed as pytest expected it to.

    Where no rank raised one, as when one was lost, it is a `RankFailure`.
    """
    outcomes = result.outcomes
    if not failures(outcomes):
        return None
    root = root_cause(outcomes)
    if not isinstance(root, Raised):
        return _info(RankFailure(outcomes))
    report = result.answers[root.rank].report or {"outcome": "failed"}
    if report["outcome"] != "failed" or root.message.startswith(XPASS_STRICT):
        return None
    error = outer = _like(*(("Failed", root.message) if root.kind == "an error" else (root.kind, root.message)))
    for _, crash, sentence in reversed(_earlier(report)):
        kind, _, message = crash["message"].partition(": ")
        inner = _like(kind, message)
        if _DIRECT_CAUSE in (sentence or ""):
            outer.__cause__ = inner
        else:
            outer.__context__ = inner
        outer = inner
    return _info(error)


def _earlier(report: Mapping[str, Any]) -> list[Any]:
    """Return (traceback, crash, sentence that follows) of each exception before the last one, oldest first."""
    longrepr = report.get("longrepr")
    chain = longrepr.get("chain") if isinstance(longrepr, dict) else None
    return [link for link in (chain or [])[:-1] if link[1] is not None]


def _like(kind: str, message: str) -> BaseException:
    """Return an exception that is an instance of the type named, where this process knows it, and says `message`."""
    module, _, name = kind.rpartition(".")
    known = getattr(sys.modules.get(module) if module else builtins, name, None)
    base = known if isinstance(known, type) and issubclass(known, BaseException) else Exception
    says = {"__str__": lambda _: message, "__init__": lambda _: None, "__module__": module or "builtins"}
    found: BaseException
    try:
        found = type(name, (base,), says)()
    except Exception:  # noqa: BLE001  whatever a foreign type's `__new__` or metaclass asks for
        found = type(name, (Exception,), says)()
    return found


def _info(error: BaseException) -> pytest.ExceptionInfo[BaseException]:
    """Give an exception the traceback without which pytest takes none."""
    try:
        raise error  # noqa: TRY301  nobody else is to see it
    except BaseException:  # noqa: BLE001  the one above
        return pytest.ExceptionInfo.from_current()
