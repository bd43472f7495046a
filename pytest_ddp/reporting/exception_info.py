"""An exception in the controller like the one that was raised on a rank, for plugins that read `call.excinfo`.

pytest-rerunfailures does: its filters match the type and the message of an exception, and of those it was raised from.
"""

import sys
from typing import Any, TypeVar

import pytest

from pytest_ddp.outcomes.failure import RankFailure, failures, root_cause
from pytest_ddp.outcomes.outcome import Raised
from pytest_ddp.reporting.merge import PhaseResult
from pytest_ddp.reporting.skip_xfail import XPASS_STRICT

T = TypeVar("T")
_DIRECT_CAUSE = "direct cause"  # in the sentence that pytest writes between tracebacks for `raise ... from ...`


def root_exception(result: PhaseResult) -> pytest.ExceptionInfo[BaseException] | None:
    """Return an exception like the root cause's, or a `RankFailure` if the root cause is a rank that died or hung.

    It is None if no rank failed, or if pytest on the rank expected the failure.
    """
    if not failures(result.outcomes):
        return None
    root = root_cause(result.outcomes)
    if not isinstance(root, Raised):
        return _info(RankFailure(result.outcomes))
    report = result.answers[root.rank].report or {"outcome": "failed"}
    if report["outcome"] != "failed" or root.message.startswith(XPASS_STRICT):
        return None
    error = outer = _like(root.kind, root.message)
    longrepr = report.get("longrepr")
    chain: list[Any] = longrepr["chain"] if isinstance(longrepr, dict) and "chain" in longrepr else []
    for _, crash, sentence in reversed(chain[:-1]):
        if crash is not None:
            inner = _like(*crash["message"].partition(": ")[::2])
            setattr(outer, "__cause__" if _DIRECT_CAUSE in (sentence or "") else "__context__", inner)
            outer = inner
    return _info(error)


def loaded_type(module: str, name: str, base: type[T]) -> type[T] | None:
    """Return a type derived from `base` by its qualified name, if its module is loaded; nothing is imported."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, base) else None


def _like(kind: str, message: str) -> BaseException:
    """Return an exception with this message, of a type with this name; it derives from that type if it is loaded."""
    module, _, name = kind.rpartition(".")
    base = loaded_type(module or "builtins", name, BaseException) or Exception
    attributes = {"__str__": lambda _: message, "__init__": lambda _: None, "__module__": module or "builtins"}
    error: BaseException
    try:
        error = type(name, (base,), attributes)()
    except Exception:  # noqa: BLE001  the `__new__` or the metaclass of a foreign type may raise anything
        error = type(name, (Exception,), attributes)()
    return error


def _info(error: BaseException) -> pytest.ExceptionInfo[BaseException]:
    try:
        raise error  # noqa: TRY301  pytest requires a traceback
    except BaseException:  # noqa: BLE001  the one above
        return pytest.ExceptionInfo.from_current()
