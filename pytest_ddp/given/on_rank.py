"""A Hypothesis test on a rank: runs the test's own function with the arguments that the controller drew.

Each example is a call phase of pytest with the fixtures that setup made. `note`, `event`, `target` and `assume` work as
in any example; what the test passes to them is sent to the controller.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import iscoroutinefunction
from io import BytesIO
from types import MethodType, SimpleNamespace
from typing import Any

import cloudpickle
import pytest
import torch
from hypothesis.errors import UnsatisfiedAssumption

from pytest_ddp.errors import UsageError
from pytest_ddp.given.hypothesis_internals import RunningExample, origin_of
from pytest_ddp.observed.recording import current
from pytest_ddp.protocol.phases import ExampleReport
from pytest_ddp.pytest_internals import drop_captured
from pytest_ddp.rank.worker import Failed, Rank, SkipRun
from pytest_ddp.rank_session.session import RankPlugin
from pytest_ddp.reporting.skip_xfail import XPASS_STRICT

_ASYNC = (
    "async def functions are not natively supported: install a plugin that runs them, such as pytest-asyncio, and mark "
    "the test as that plugin requires"
)
_first_rng_state = pytest.StashKey[tuple[str, torch.Tensor]]()


def example(body: bytes) -> bytes:
    """Run the current test with pickled arguments; return an `ExampleReport`, or raise a failure that carries one."""
    *_, simulation = _unpickled(body)
    return RankPlugin.current.on_ranks(partial(_example, body), **simulation)


def _example(body: bytes) -> bytes:
    plugin = RankPlugin.current
    item, run = plugin.item, _ExampleRun(*_unpickled(body)[:2])
    test = item.obj
    _reset_state(item)
    item.obj = run.function(test)
    try:
        phase = plugin.report("call")
    except Failed as failed:
        if not failed.text.startswith(XPASS_STRICT):  # all examples together decide about an unexpected pass
            raise Failed(failed.kind, failed.message, failed.text, run.encoded(failed.body)) from None
        phase = failed.body
    except SkipRun as skip:
        raise SkipRun(str(skip), run.encoded(skip.body)) from None
    finally:
        item.obj = test
    if run.report.rejected is not None:
        raise SkipRun(run.report.rejected, run.encoded(b""))
    return run.encoded(phase)


@dataclass
class _ExampleRun:
    """One example: its arguments, the seed of `st.random_module()` if it was drawn, and what the test reports."""

    arguments: dict[str, Any]
    seed: int | None = None
    report: ExampleReport = field(default_factory=ExampleReport)

    def function(self, test: Any) -> Callable[..., None]:
        """Return a function that pytest calls with the fixtures in place of `test`."""
        if not hasattr(test, "hypothesis"):  # Hypothesis draws its schedule alone
            return self._plain(test)
        inner = test.hypothesis.inner_test
        if isinstance(test, MethodType):
            inner = MethodType(inner, test.__self__)
        handle = SimpleNamespace(inner_test=inner)  # a plugin for coroutine functions replaces `inner_test`

        def run(**fixtures: Any) -> Any:
            __tracebackhide__ = True
            if iscoroutinefunction(handle.inner_test):
                pytest.fail(_ASYNC, pytrace=False)
            with self._hypothesis_context(test):
                return handle.inner_test(**fixtures, **self.arguments)

        run.hypothesis = handle  # type: ignore[attr-defined]
        run.__wrapped__ = inner  # type: ignore[attr-defined]  # pytest cuts tracebacks at the wrapped function
        return run

    def _plain(self, test: Any) -> Callable[..., None]:
        def run(**fixtures: Any) -> Any:
            __tracebackhide__ = True
            with self._noting_origin():
                return test(**fixtures)

        run.__wrapped__ = test  # type: ignore[attr-defined]  # as below
        return run

    def encoded(self, phase: bytes) -> bytes:
        """Return the report with pytest's report of the call, as bytes."""
        return replace(self.report, phase=phase).encode()

    @contextmanager
    def _hypothesis_context(self, test: Any) -> Iterator[None]:
        """Run the body inside an example of Hypothesis, in which nothing can be drawn, and fill the report."""
        started = RunningExample()
        try:
            with started.running(test, self.seed), self._noting_origin():
                yield
        except UnsatisfiedAssumption as rejected:
            self.report = replace(self.report, rejected=rejected.reason or "the example was rejected")
        finally:
            self.report = replace(self.report, notes=started.notes, events=started.events, targets=started.targets)

    @contextmanager
    def _noting_origin(self) -> Iterator[None]:
        try:
            yield
        except UnsatisfiedAssumption:
            raise
        except BaseException as error:
            shown = RankPlugin.current.shown(error)
            kind = f"{type(shown).__module__}:{type(shown).__qualname__}"
            self.report = replace(self.report, origin=origin_of(shown), kind=kind)
            if shown is error:
                raise
            raise shown from None


def _unpickled(body: bytes) -> tuple[dict[str, Any], int | None, dict[str, Any]]:
    """Return the arguments, the seed of `st.random_module()`, and the schedule and faults of simulated ranks."""
    file = BytesIO(body)
    try:
        return cloudpickle.load(file), cloudpickle.load(file), cloudpickle.load(file)
    except Exception as error:
        raise UsageError(
            f"the drawn arguments cannot be unpickled on this rank ({type(error).__name__}: {error}): "
            "their classes and functions must be importable on ranks"
        ) from error


def _reset_state(item: pytest.Item) -> None:
    """Begin an example with torch's generator as it was before the first one, and with an empty record and report."""
    run = Rank.current.run
    group = run.group if run else ""
    if _first_rng_state not in item.stash or item.stash[_first_rng_state][0] != group:
        item.stash[_first_rng_state] = group, torch.get_rng_state()
    torch.set_rng_state(item.stash[_first_rng_state][1])
    current.reset()
    drop_captured(item, "call")
