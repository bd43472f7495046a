"""`@distributed` with Hypothesis's `@given`: the controller draws, the ranks run.

Hypothesis runs in the controller as in any process, with its own shrinking, database and statistics. What it calls is
not the test's function but a dispatcher that sends the drawn arguments to the ranks, where setup has left the fixtures,
and that raises for a failing example an exception of a type that names the bug.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import event, note, target
from hypothesis.control import current_build_context
from hypothesis.core import StateForActualGivenExecution
from hypothesis.errors import DeadlineExceeded, Flaky, UnsatisfiedAssumption

from pytest_ddp.errors import LaunchError, PytestDDPError, UsageError
from pytest_ddp.given.arguments import dump
from pytest_ddp.given.example_ranks import ExampleRanks
from pytest_ddp.given.failures import ExampleFailed, failed
from pytest_ddp.given.messages import Told
from pytest_ddp.given.report import Bugs
from pytest_ddp.outcomes.failure import failures, summary
from pytest_ddp.outcomes.outcome import Outcome, Raised, Returned, Skipped, TimedOut
from pytest_ddp.pytest_internals import Skipped as SkippedTest
from pytest_ddp.pytest_internals import argument_names, parameters

# Says to the controller's Hypothesis what the test said on ranks: notes, events and targets.


def pass_on(told: Mapping[int, Told]) -> None:
    """Repeat notes with their rank unless all ranks said the same, events once, of each target the best."""
    for text in notes_of(told):
        note(text)
    for value, payload in {name: value for account in told.values() for name, value in account.events.items()}.items():
        event(value, payload)
    best: dict[str, float] = {}
    for account in told.values():
        for label, observed in account.targets.items():
            best[label] = max(observed, best.get(label, observed))
    for label, observed in best.items():
        target(observed, label=label)


def notes_of(told: Mapping[int, Told]) -> Iterator[str]:
    """Yield what was noted, in order; with its rank what not all ranks said."""
    for together in zip_longest(*(account.notes for account in told.values())):
        if len(set(together)) == 1:
            yield together[0]
        else:
            pairs = zip(told, together, strict=True)
            yield from (f"rank {rank}: {text}" for rank, text in pairs if text is not None)


def run_examples(item: pytest.Function, ranks: ExampleRanks) -> tuple[Sequence[Outcome], Bugs | None]:
    """Run a Hypothesis test whose examples run on ranks; return the outcomes of the last example, and the bugs found.

    What Hypothesis itself raises (Unsatisfiable, FailedHealthCheck, Flaky, DeadlineExceeded) is raised here.

    Raises:
        UsageError: for an argument that cannot travel to the ranks.
        PytestDDPError: when the test could not be set up again for the next example.
    """
    __tracebackhide__ = True
    dispatch = _Dispatch(ranks)
    with _inner_test(item.obj.hypothesis, dispatch.run), _no_tracing():
        try:
            item.obj(**_placeholders(item))
        except _GiveUp as given_up:
            raise given_up.error from None
        except _RanksSkipped:
            return dispatch.outcomes, None
        except DeadlineExceeded as missed:
            missed.add_note(_slowest(dispatch.outcomes))
            raise
        except ExampleFailed as bug:
            return bug.outcomes, Bugs([bug])
        except BaseExceptionGroup as group:
            bugs = [error for error in group.exceptions if isinstance(error, ExampleFailed)]
            if isinstance(group, Flaky) or len(bugs) < len(group.exceptions):
                raise
            return bugs[-1].outcomes, Bugs(bugs, [group.message, *getattr(group, "__notes__", [])])
    return dispatch.outcomes, None


class _RanksSkipped(SkippedTest):
    """Every rank skipped; Hypothesis lets it through."""


class _GiveUp(BaseException):
    """No example can be run any more; nothing that Hypothesis takes for a failing example."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


@dataclass
class _Dispatch:
    """Runs examples on ranks, and says to Hypothesis what became of them."""

    ranks: ExampleRanks
    outcomes: Sequence[Outcome] = ()
    _last: ExampleFailed | None = None
    _last_choices: object = None

    def run(self, drawn: dict[str, Any]) -> None:
        """Run one example; return if every rank passed."""
        __tracebackhide__ = True
        context = current_build_context()
        body = _dump(drawn)
        choices = context.data.choices or body
        if self._last is not None:
            raise self._last if choices == self._last_choices else UnsatisfiedAssumption("no ranks are left")
        answers = self.ranks.run(body, shown=context.is_final)
        told = {outcome.rank: account for outcome in answers if (account := _account(outcome))}
        self.outcomes = [_with_report(outcome, told) for outcome in answers]
        pass_on(told)
        error = self._judge(told)
        if error is not None:
            self._go_on(error, choices)
            raise error

    def _judge(self, told: dict[int, Told]) -> BaseException | None:
        rejected = [account.rejected for account in told.values() if account.rejected is not None]
        skipped = [outcome for outcome in self.outcomes if isinstance(outcome, Skipped)]
        if failures(self.outcomes):
            return failed(self.outcomes, told, self.ranks.world)
        if rejected:
            return UnsatisfiedAssumption(rejected[0])
        if len(skipped) == len(self.outcomes):
            return _RanksSkipped(skipped[0].reason)
        return failed(self.outcomes, told, self.ranks.world) if skipped else None

    def _go_on(self, error: BaseException, choices: object) -> None:
        """Make the ranks fit for another example; if that cannot be, `error` is the last word on these choices."""
        if isinstance(error, _RanksSkipped) or self.ranks.are_in_step(self.outcomes):
            return
        why_not = self._renew()
        if why_not is None:
            return
        if not isinstance(error, ExampleFailed):
            raise _GiveUp(PytestDDPError(why_not)) from error
        error.add_note(why_not)
        self._last, self._last_choices = error, choices

    def _renew(self) -> str | None:
        """Set the test up again; return why that cannot be."""
        if any(isinstance(outcome, TimedOut) for outcome in self.outcomes):
            return "Not shrunk: every example that hangs takes until the deadline."
        try:
            again = self.ranks.renew()
        except LaunchError as error:
            return f"Not tried further: {error}"
        if all(isinstance(outcome, Returned) for outcome in again):
            return None
        how = summary(again) if failures(again) else "ranks skipped"
        return f"Not tried further: the test could not be set up again: {how}"


def _slowest(outcomes: Sequence[Outcome]) -> str:
    slowest = max(outcomes, key=lambda outcome: outcome.seconds)
    return f"The last example took longest on rank {slowest.rank}: {slowest.seconds * 1000:.1f}ms."


def _dump(drawn: dict[str, Any]) -> bytes:
    try:
        return dump(drawn)
    except UsageError as error:
        raise _GiveUp(error) from None


def _account(outcome: Outcome) -> Told | None:
    return Told.decode(outcome.body) if isinstance(outcome, Returned | Raised | Skipped) and outcome.body else None


def _with_report(outcome: Outcome, told: dict[int, Told]) -> Outcome:
    if isinstance(outcome, Returned | Raised | Skipped) and outcome.rank in told:
        return replace(outcome, body=told[outcome.rank].report)
    return outcome


@contextmanager
def _inner_test(handle: Any, run: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Let Hypothesis call `run` in place of the test's function, which it still reads for its database."""
    inner = handle.inner_test

    @functools.wraps(inner)
    def dispatch(*_: Any, **arguments: Any) -> None:
        __tracebackhide__ = True
        run({name: arguments[name] for name in handle._given_kwargs})  # noqa: SLF001  the names that are drawn

    handle.inner_test = dispatch
    try:
        yield
    finally:
        handle.inner_test = inner


@contextmanager
def _no_tracing() -> Iterator[None]:
    """Keep Hypothesis from explaining failures by the lines that ran in the controller: they are all ours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StateForActualGivenExecution, "_should_trace", lambda _: False)
        yield


class _OnRanks:
    """Stands for a fixture, which exists on the ranks only."""

    def __repr__(self) -> str:
        return "..."


def _placeholders(item: pytest.Function) -> dict[str, Any]:
    known = parameters(item)
    return {name: known.get(name, _OnRanks()) for name in argument_names(item)}
