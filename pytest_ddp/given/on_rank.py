"""A rank's side of a Hypothesis test: runs the test's own function on arguments that the controller drew.

Every example is a call phase of pytest's on the fixtures that setup made. `note`, `event`, `target` and `assume` find
a context of Hypothesis's own here; what they were told goes to the controller.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import iscoroutinefunction
from types import MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import torch
from hypothesis import Verbosity, settings
from hypothesis._settings import local_settings
from hypothesis.control import BuildContext
from hypothesis.errors import UnsatisfiedAssumption
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.internal.entropy import deterministic_PRNG, get_seeder_and_restorer
from hypothesis.internal.escalation import InterestingOrigin
from hypothesis.reporting import with_reporter

from pytest_ddp.errors import UsageError
from pytest_ddp.given.messages import Told
from pytest_ddp.observed.recording import current
from pytest_ddp.pytest_internals import drop_captured
from pytest_ddp.rank.worker import Failed, Rank, SkipRun
from pytest_ddp.rank_session.session import RankPlugin
from pytest_ddp.reporting.skip_xfail import XPASS_STRICT

if TYPE_CHECKING:
    from pytest_ddp.given.arguments import Drawn

_ASYNC = (
    "async def functions are not natively supported: install a plugin that runs them, such as pytest-asyncio, and mark "
    "the test as it asks"
)
_generators = pytest.StashKey[tuple[str, torch.Tensor]]()


def example(body: bytes) -> bytes:
    """Run the test at hand on pickled arguments; return or raise what the rank has to tell (`Told`)."""
    plugin = RankPlugin.current
    item, body_run = plugin.item, _Body(*_load(body))
    test = item.obj
    _begin_like_the_first(item)
    item.obj = body_run.function(test)
    try:
        report = plugin.call()
    except Failed as failed:
        if not failed.text.startswith(XPASS_STRICT):  # which is for all examples together to decide
            raise Failed(failed.kind, failed.message, failed.text, body_run.tell(failed.body)) from None
        report = failed.body
    except SkipRun as skip:
        raise SkipRun(str(skip), body_run.tell(skip.body)) from None
    finally:
        item.obj = test
    if body_run.told.rejected is not None:
        raise SkipRun(body_run.told.rejected, body_run.tell(b""))
    return body_run.tell(report)


@dataclass
class _Body:
    """The body of a test with arguments from Hypothesis, and what it told."""

    drawn: dict[str, Any]
    seed: int | None = None
    told: Told = field(default_factory=Told)

    def function(self, test: Any) -> Callable[..., None]:
        """Return a function that takes the fixtures alone, as pytest calls it, in place of `test`."""
        inner = test.hypothesis.inner_test
        if isinstance(test, MethodType):
            inner = MethodType(inner, test.__self__)

        handle = SimpleNamespace(inner_test=inner)  # where plugins put what runs a coroutine function

        def run(**fixtures: Any) -> Any:
            __tracebackhide__ = True
            if iscoroutinefunction(handle.inner_test):
                pytest.fail(_ASYNC, pytrace=False)
            with self._context(test):
                return handle.inner_test(**fixtures, **self.drawn)

        run.hypothesis = handle  # type: ignore[attr-defined]
        run.__wrapped__ = inner  # type: ignore[attr-defined]  # pytest cuts tracebacks at the function wrapped
        return run

    def tell(self, report: bytes) -> bytes:
        """Return what is told to the controller, with pytest's report."""
        return replace(self.told, report=report).encode()

    @contextmanager
    def _context(self, test: Any) -> Iterator[None]:
        """Be in the middle of an example, for what the body calls of Hypothesis; nothing can be drawn."""
        data, notes = ConjectureData.for_choices(()), list[Any]()
        quiet = settings(test._hypothesis_internal_use_settings, verbosity=Verbosity.normal)  # noqa: SLF001
        in_example = BuildContext(data, is_final=True, wrapped_test=test)
        try:
            with (
                local_settings(quiet),
                deterministic_PRNG(),
                with_reporter(lambda text: notes.append(str(text))),
                in_example,
            ):
                if self.seed is not None:
                    get_seeder_and_restorer(self.seed)[0]()
                yield
        except UnsatisfiedAssumption as rejected:
            self.told = replace(self.told, rejected=rejected.reason or "the example was rejected")
        except BaseException as error:
            kind = type(error)
            origin = str(InterestingOrigin.from_exception(error))
            self.told = replace(self.told, origin=origin, kind=f"{kind.__module__}:{kind.__qualname__}")
            raise
        finally:
            targets = {label: float(value) for label, value in data.target_observations.items()}
            self.told = replace(self.told, notes=notes, events=dict(data.events), targets=targets)


def _load(body: bytes) -> tuple[dict[str, Any], int | None]:
    drawn: Drawn = cloudpickle.loads(body)
    try:
        return cloudpickle.loads(drawn.arguments), drawn.seed
    except Exception as error:
        raise UsageError(
            f"the drawn arguments cannot be unpickled here ({type(error).__name__}: {error}): "
            "what they are made of must be importable on ranks"
        ) from error


def _begin_like_the_first(item: pytest.Item) -> None:
    """Give every example the random numbers that the first one had, a record and a report of its own."""
    run = Rank.current.run
    group = run.group if run else ""
    if _generators not in item.stash or item.stash[_generators][0] != group:
        item.stash[_generators] = group, torch.get_rng_state()
    torch.set_rng_state(item.stash[_generators][1])
    current.reset()
    drop_captured(item, "call")
