"""The Hypothesis tests among distributed tests. Imports Hypothesis only when a test uses it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddp.errors import UsageError
from pytest_ddp.given.example_ranks import ExampleRanks
from pytest_ddp.given.failures import Bugs
from pytest_ddp.items import is_distributed
from pytest_ddp.outcomes.outcome import Outcome
from pytest_ddp.pytest_internals import fixture_definitions, parameters, replaced_request

_STATE_MACHINE = (
    "@distributed does not work on a state machine, whose rules run in the controller. Keep the object under test on "
    "ranks, and let the rules call it: ddp_ranks(world_size=2).hold(factory), see docs/hypothesis.md"
)


def is_given(item: pytest.Item) -> bool:
    """Whether the test is decorated with Hypothesis's `@given`."""
    return hasattr(getattr(item, "obj", None), "hypothesis")


def check_hypothesis(item: pytest.Item) -> None:
    """Fail a test that Hypothesis runs without `@given`: a state machine."""
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False) and not is_given(item):
        pytest.fail(_STATE_MACHINE, pytrace=False)


def run_given(item: Any, ranks: ExampleRanks) -> tuple[Sequence[Outcome], Bugs | None]:
    """Run the examples of a test (see `dispatch.run_examples`); fail it if an argument cannot be sent to the ranks."""
    from pytest_ddp.given.dispatch import run_examples  # noqa: PLC0415  imports Hypothesis

    __tracebackhide__ = True
    try:
        return run_examples(item, ranks)
    except UsageError as error:
        raise pytest.fail.Exception(f"{item.name}: {error}", pytrace=False) from None


@contextmanager
def fixtures_stay_on_ranks(item: Any) -> Iterator[None]:
    """Keep Hypothesis's pytest plugin from setting fixtures up in the controller, where it looks at their scopes."""
    if not (is_distributed(item) and is_given(item)):
        yield
        return
    with replaced_request(item, _request_for_hypothesis(item)):
        yield


def _request_for_hypothesis(item: Any) -> SimpleNamespace:
    """Return the part of a `request` that Hypothesis's pytest plugin reads, with plain values for fixtures."""

    def fixture(name: str) -> SimpleNamespace:
        is_constant = name == "ddp" or name in parameters(item)
        scope = "session" if is_constant else fixture_definitions(item)[name][-1].scope
        return SimpleNamespace(argname=name, scope=scope, params=hasattr(item, "callspec"))

    info = SimpleNamespace(name2fixturedefs={name: [fixture(name)] for name in fixture_definitions(item)})
    manager = SimpleNamespace(getfixtureinfo=lambda **_: info)
    return SimpleNamespace(_fixturemanager=manager, _get_active_fixturedef=fixture)
