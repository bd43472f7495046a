"""`@distributed` with `@given`: Hypothesis draws in the controller, and the ranks run each example.

Hypothesis shrinks, and keeps its database and its statistics, as in any process. In place of the test's function it
calls a dispatcher, which sends the drawn arguments to the ranks, where the fixtures are set up. If an example fails,
the dispatcher raises an exception whose type identifies the bug.
"""

import functools
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import cloudpickle
import pytest
from hypothesis import HealthCheck, event, given, note, settings, target
from hypothesis.errors import DeadlineExceeded, Flaky, UnsatisfiedAssumption

from pytest_ddp.errors import LaunchError, PytestDDPError, UsageError
from pytest_ddp.given.failures import Bugs, ExampleFailed, example_failure
from pytest_ddp.given.hypothesis_internals import (
    DRAWS_IN_BODY,
    add_to_key,
    current_choices,
    draw,
    drawn_names,
    is_final_example,
    seed_of_random_module,
    without_tracing,
)
from pytest_ddp.given.items import ExampleRanks, is_given
from pytest_ddp.outcomes.failure import failures, summary
from pytest_ddp.outcomes.outcome import Outcome, Raised, Returned, Skipped, TimedOut
from pytest_ddp.planning.request import draws
from pytest_ddp.protocol.phases import ExampleReport
from pytest_ddp.pytest_internals import Skipped as SkippedTest
from pytest_ddp.pytest_internals import argument_names, parameters


def run_examples(item: Any, ranks: ExampleRanks) -> tuple[Sequence[Outcome], Bugs | None]:
    """Run the examples of a Hypothesis test on ranks; return the outcomes of the last example, and the bugs found.

    Exceptions of Hypothesis (Unsatisfiable, FailedHealthCheck, Flaky, DeadlineExceeded) pass through.

    Raises:
        pytest.fail.Exception: for an argument that cannot be sent to the ranks.
        PytestDDPError: when the test could not be set up again for the next example.
    """
    __tracebackhide__ = True
    dispatcher = _Dispatcher(ranks)
    with _example_test(item, dispatcher) as test, without_tracing():
        try:
            test()
        except _NoMoreExamples as end:
            error = end.args[0]
            if isinstance(error, UsageError):
                error = pytest.fail.Exception(f"{item.name}: {error}", pytrace=False)
            raise error from None
        except _RanksSkipped:
            pass
        except DeadlineExceeded as error:
            slowest = max(dispatcher.outcomes, key=lambda outcome: outcome.seconds)
            error.add_note(f"The last example took longest on rank {slowest.rank}: {slowest.seconds * 1000:.1f}ms.")
            raise
        except ExampleFailed as bug:
            return bug.outcomes, Bugs([bug])
        except BaseExceptionGroup as group:
            bugs = [error for error in group.exceptions if isinstance(error, ExampleFailed)]
            if isinstance(group, Flaky) or len(bugs) < len(group.exceptions):
                raise
            return bugs[-1].outcomes, Bugs(bugs, [group.message, *getattr(group, "__notes__", [])])
    return dispatcher.outcomes, None


@contextmanager
def _example_test(item: Any, dispatcher: "_Dispatcher") -> Iterator[Callable[[], None]]:
    """Give the test of Hypothesis that calls the dispatcher: the item's own, or one that draws only a schedule."""
    if not is_given(item):
        yield _simulation_test(item, dispatcher)
        return
    handle, known = item.obj.hypothesis, parameters(item)
    arguments = {name: known.get(name, _Placeholder()) for name in argument_names(item)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handle, "inner_test", _dispatching(handle, dispatcher))
        yield functools.partial(item.obj, **arguments)


def _simulation_test(item: Any, dispatcher: "_Dispatcher") -> Callable[[], None]:
    """Return a test that draws schedules or faults; it has no deadline, because an example runs on many ranks."""

    def dispatch(**simulation: Any) -> None:
        __tracebackhide__ = True
        dispatcher.run({}, simulation)

    dispatch.__name__ = dispatch.__qualname__ = item.originalname
    add_to_key(dispatch, item.nodeid)
    drawn = {name: value for name, value in dispatcher.ranks.simulation.items() if draws(value)}
    unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    test: Callable[[], None] = unhurried(given(**drawn)(dispatch))
    return test


class _RanksSkipped(SkippedTest):
    """Every rank skipped; Hypothesis does not take pytest's skip for a failing example."""


class _NoMoreExamples(BaseException):
    """No example can be run any more, because of an error; Hypothesis does not take this for a failing example."""


@dataclass
class _Dispatcher:
    """Runs examples on ranks, and raises the result in Hypothesis; `outcomes` are those of the latest example."""

    ranks: ExampleRanks
    outcomes: Sequence[Outcome] = ()
    _last_failure: ExampleFailed | None = None  # after which no example can be run
    _last_choices: object = None

    def run(self, arguments: dict[str, Any], simulation: Mapping[str, Any] | None = None) -> None:
        """Run one example; return if it passed on every rank."""
        __tracebackhide__ = True
        drawn = self._draw_simulation() if simulation is None else simulation
        body = _pickled(arguments, {**self.ranks.simulation, **drawn})
        choices = current_choices() or body
        if self._last_failure is not None:
            raise self._last_failure if choices == self._last_choices else UnsatisfiedAssumption("no ranks are left")
        outcomes = self.ranks.run(body, shown=is_final_example())
        answered = [o for o in outcomes if isinstance(o, Returned | Raised | Skipped) and o.body]
        reports = {outcome.rank: ExampleReport.decode(outcome.body) for outcome in answered}
        phases = {outcome.rank: replace(outcome, body=reports[outcome.rank].phase) for outcome in answered}
        self.outcomes = [phases.get(outcome.rank, outcome) for outcome in outcomes]
        _forward(reports)
        error = self._error(reports)
        if error is not None:
            self._prepare_next(error, choices)
            raise error

    def _draw_simulation(self) -> dict[str, Any]:
        """Return a schedule and faults for the example, as far as the test has strategies for them."""
        drawn = {name: draw(value) for name, value in self.ranks.simulation.items() if draws(value)}
        for name, value in drawn.items():
            note(f"{name}={value!r}")
        return drawn

    def _error(self, reports: Mapping[int, ExampleReport]) -> BaseException | None:
        rejected = [report.rejected for report in reports.values() if report.rejected is not None]
        skipped = [outcome for outcome in self.outcomes if isinstance(outcome, Skipped)]
        if not failures(self.outcomes):
            if rejected:
                return UnsatisfiedAssumption(rejected[0])
            if not skipped:
                return None
            if len(skipped) == len(self.outcomes):
                return _RanksSkipped(skipped[0].reason)
        return example_failure(self.outcomes, reports, self.ranks.group.world)

    def _prepare_next(self, error: BaseException, choices: object) -> None:
        """Make the ranks ready for another example; if that fails, run none but repeat `error` for these choices."""
        if isinstance(error, _RanksSkipped) or self.ranks.are_in_step(self.outcomes):
            return
        obstacle = self._set_up_again()
        if obstacle is None:
            return
        if not isinstance(error, ExampleFailed):
            raise _NoMoreExamples(PytestDDPError(obstacle)) from error
        error.add_note(obstacle)
        self._last_failure, self._last_choices = error, choices

    def _set_up_again(self) -> str | None:
        """Set the test up for another example; return a sentence if that is not possible."""
        if any(isinstance(outcome, TimedOut) for outcome in self.outcomes):
            return "Not shrunk: each further example that hangs would run until its deadline."
        try:
            outcomes = self.ranks.renew()
        except LaunchError as error:
            return f"No further example was run: {error}"
        if all(isinstance(outcome, Returned) for outcome in outcomes):
            return None
        reason = summary(outcomes) if failures(outcomes) else "a rank skipped"
        return f"No further example was run: the test could not be set up again: {reason}"


def _forward(reports: Mapping[int, ExampleReport]) -> None:
    """Pass the notes, events and targets of the ranks to Hypothesis: each event once, of a target the largest value."""
    for text in merged_notes(reports):
        note(text)
    events = {name: payload for report in reports.values() for name, payload in report.events.items()}
    for name, payload in events.items():
        event(name, payload)
    largest: dict[str, float] = {}
    for report in reports.values():
        for label, value in report.targets.items():
            largest[label] = max(value, largest.get(label, value))
    for label, value in largest.items():
        target(value, label=label)


def merged_notes(reports: Mapping[int, ExampleReport]) -> Iterator[str]:
    """Yield the notes in order: once if all ranks made the same note, else with the rank in front."""
    for texts in zip_longest(*(report.notes for report in reports.values())):
        if len(set(texts)) == 1:
            yield texts[0]
        else:
            yield from (f"rank {rank}: {text}" for rank, text in zip(reports, texts, strict=True) if text is not None)


def _dispatching(handle: Any, dispatcher: _Dispatcher) -> Callable[..., None]:
    """Return the function that Hypothesis calls in place of the test's; `wraps` keeps the key in its database."""

    @functools.wraps(handle.inner_test)
    def dispatch(*_: Any, **arguments: Any) -> None:
        __tracebackhide__ = True
        dispatcher.run({name: arguments[name] for name in drawn_names(handle)})

    return dispatch


class _Placeholder:
    """Stands for a fixture, which exists on the ranks only."""

    def __repr__(self) -> str:
        return "..."


def _pickled(arguments: dict[str, Any], simulation: Mapping[str, Any]) -> bytes:
    """Pickle the arguments, for all ranks alike; name the one that draws in the test's body, or cannot be pickled."""
    try:
        return _pickle(arguments, simulation)
    except Exception:  # pickling a foreign object may raise anything
        for name, value in arguments.items():
            _check(name, value)
        raise


def _check(name: str, value: Any) -> None:
    try:
        _pickle(value)
    except _DrawsInBodyError:
        problem = (
            "draws while the test runs, but the test runs on the ranks and Hypothesis in the "
            "controller: draw everything before the test, with @st.composite or .flatmap() in place of st.data(), "
            "a seed in place of st.randoms(), and one of several functions of yours in place of st.functions()"
        )
    except Exception as error:  # noqa: BLE001  as above
        problem = (
            f"(a {type(value).__name__}) cannot be sent to the ranks: {type(error).__name__}: {error}; draw values "
            "that can be pickled, and create the rest from them in the test"
        )
    else:
        return
    raise _NoMoreExamples(UsageError(f"the argument {name!r} {problem}"))


class _DrawsInBodyError(Exception):
    """An argument refers to the choices of the example."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    seed: int | None = None

    def reducer_override(self, found: Any) -> Any:
        if isinstance(found, DRAWS_IN_BODY):
            raise _DrawsInBodyError
        if (seed := seed_of_random_module(found)) is not None:
            self.seed = seed
        return super().reducer_override(found)


def _pickle(value: Any, simulation: Mapping[str, Any] | None = None) -> bytes:
    """Return a pickle of a value, one of the seed that `st.random_module()` drew, or None, and one for simulated ranks.

    Each rank seeds itself. Classes and functions of test modules are pickled by name: ranks collect the same files.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    cloudpickle.dump(pickler.seed, file)
    cloudpickle.dump(simulation, file)
    return file.getvalue()
