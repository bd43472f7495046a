"""Which distributed tests are Hypothesis tests; nothing here imports Hypothesis for those that are not."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_ddp.errors import UsageError
from pytest_ddp.given.example_ranks import ExampleRanks
from pytest_ddp.given.report import Bugs
from pytest_ddp.items import is_distributed
from pytest_ddp.outcomes.outcome import Outcome
from pytest_ddp.pytest_internals import fixture_definitions, parameters, replaced_request

_STATE_MACHINE = (
    "@distributed does not go with a state machine: its rules run in the controller. Let them call ranks that hold "
    "what is tested: ddp_ranks(world_size=2).hold(factory), see docs/hypothesis.md"
)


def is_given(item: pytest.Item) -> bool:
    """Whether the test is decorated with Hypothesis's `@given`."""
    return hasattr(getattr(item, "obj", None), "hypothesis")


def check_hypothesis(item: pytest.Item) -> None:
    """Fail a test of Hypothesis's that cannot be distributed."""
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False) and not is_given(item):
        pytest.fail(_STATE_MACHINE, pytrace=False)


def run_given(item: Any, ranks: ExampleRanks) -> tuple[Sequence[Outcome], Bugs | None]:
    """Run the examples of a test (see `given.run_examples`)."""
    from pytest_ddp.given.dispatch import run_examples  # noqa: PLC0415  imports Hypothesis

    __tracebackhide__ = True
    try:
        return run_examples(item, ranks)
    except UsageError as error:
        raise pytest.fail.Exception(f"{item.name}: {error}", pytrace=False) from None


@dataclass(frozen=True)
class _Fixture:
    argname: str
    scope: str
    params: bool


@dataclass(frozen=True)
class _Request:
    """What Hypothesis's pytest plugin asks of an item's request; no fixture is made for the answers."""

    item: Any

    @property
    def _fixturemanager(self) -> "_Request":
        return self

    @property
    def name2fixturedefs(self) -> dict[str, list[_Fixture]]:
        return {name: [self._get_active_fixturedef(name)] for name in fixture_definitions(self.item)}

    def getfixtureinfo(self, **_: Any) -> "_Request":
        return self

    def _get_active_fixturedef(self, name: str) -> _Fixture:
        definition = fixture_definitions(self.item)[name][-1]
        fixed = name == "ddp" or name in parameters(self.item)
        return _Fixture(name, "session" if fixed else definition.scope, hasattr(self.item, "callspec"))


@contextmanager
def fixtures_stay_on_ranks(item: Any) -> Iterator[None]:
    """Keep Hypothesis's pytest plugin, which looks at scopes, from making the fixtures of ranks in the controller."""
    if not (is_distributed(item) and is_given(item)):
        yield
        return
    with replaced_request(item, _Request(item)):
        yield
