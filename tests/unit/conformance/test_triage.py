"""What fails by chance is told from what fails only where ranks disagree on the hash of a text."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from conformance.checks.check import Violation
from conformance.judging.triage import HASH_APART, cause_of
from conformance.scenarios.scenario import Scenario


class Runs:
    """Fails on used ranks and on new ones that hash apart; on new ones that hash alike, as it is told."""

    def __init__(self, alike: Iterator[bool]) -> None:
        self.alike = alike

    def run(self, *_: object) -> bool:
        return True

    run_again = run

    def run_afresh(self, *_: object, alike: bool = False) -> bool:
        return next(self.alike) if alike else True


def judge(failed: object, _: object) -> None:
    if failed:
        raise Violation("wrong")


@pytest.mark.parametrize(
    ("alike", "when"),
    [
        ([True], "always"),
        ([False, False, False, False], "hash_apart"),
        ([False, True, False, False], "sometimes"),
        ([False, False, False, True], "sometimes"),
    ],
)
def test_a_hash_is_blamed_only_if_ranks_that_hash_alike_never_fail(alike, when):
    component, check = SimpleNamespace(diagnose=None), SimpleNamespace(advice="")
    search = SimpleNamespace(executor=Runs(iter(alike)), component=component, check=check, judge=judge)
    cause = cause_of(search, Scenario(), Violation("wrong"))
    assert cause.when == when
    assert (cause.diagnosis == HASH_APART) == (when == "hash_apart")
    assert cause.diagnosis.startswith("This is a race: with the same numbers, 2 of 5 runs failed") == (
        when == "sometimes"
    )
