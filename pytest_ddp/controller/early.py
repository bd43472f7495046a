"""The next test, begun on its ranks while pytest still reports the one before.

Only where nothing but the ranks can decide what becomes of it: with its neighbour it shares a group and all fixtures of
wider scope, its setup is sure to go alike on all ranks (`certainty`), the run does not stop at a failure, and no plugin
that we do not know has a say before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from pytest_ddp.controller.group_scope import Place
from pytest_ddp.outcomes.outcome import Outcome
from pytest_ddp.protocol.phases import PhaseRequest
from pytest_ddp.reporting.merge import answer_of, passed_plainly

_DECIDING_HOOKS = ("pytest_runtest_protocol", "pytest_runtest_setup", "pytest_runtest_call")
_KNOWN = (  # theirs skip nothing that our ranks would not skip too
    "_hypothesis_pytestplugin",
    "_pytest.",
    "conformance.",
    "pytest_asyncio.",
    "pytest_cov.",
    "pytest_ddp.",
    "pytest_randomly",
    "pytest_rerunfailures",
    "pytest_timeout",
)


@dataclass(frozen=True)
class Early:
    """A test that ranks have begun and pytest has not come to.

    Attributes:
        item: the test.
        place: where it runs.
        request: what was asked of the ranks.
    """

    item: pytest.Item
    place: Place
    request: PhaseRequest


def may_begin_early(item: pytest.Item) -> bool:
    """Whether nobody in the controller would keep the test from running, or see that it had begun."""
    config = item.config
    is_worker = hasattr(config, "workerinput")  # xdist's: what comes after the next test is not known there
    if is_worker or config.option.maxfail or config.getoption("capture", "no") != "fd":
        return False
    relay = item.ihook
    hooks = [hook for name in _DECIDING_HOOKS for hook in getattr(relay, name).get_hookimpls()]
    return all(hook.function.__module__.startswith(_KNOWN) for hook in hooks)


def are_ready(outcomes: Sequence[Outcome]) -> bool:
    """Whether these ranks have torn down a test and can go on to the next."""
    return all(passed_plainly(outcome) and not answer_of(outcome).retire for outcome in outcomes)
