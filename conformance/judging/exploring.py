"""Holds a component to a check in every order in which ranks can run, and results arrive; says what that has shown."""

from dataclasses import replace

from conformance.execution.outcome import HarnessError
from conformance.judging.draws import Draws
from conformance.judging.hold import Search
from conformance.protocol.explored import Explored
from pytest_ddp.simulated.exploration import Certificate

_THE_SAME = "Orders in which every rank reads the same bits at the same places count as one."
_DRAWN = "Drawn orders were run as well."


def holds_in_every_order(search: Search, draws: Draws) -> bool:
    """Whether the property holds in every order of the check's scenario; False also if that cannot be told.

    Raise Violation, with the schedule that shows it, if it does not hold; NotOffered as `Search.judge` does.
    """
    scenario = search.check.explores and draws.claimed(search.check.explores(draws.bounds))
    if not scenario:
        return False
    search.hold(scenario)  # whether the numbers are right: exploration only compares them with those of other orders
    search.settle()
    try:
        found = search.executor.explore(search.component, scenario)
    except HarnessError:
        found = None
    if found is not None and found.found is not None:
        search.hold(replace(scenario, order=found.found))
    search.certificate = _shown(found, scenario.world_size)
    return found is not None and found.finished


def _shown(found: Explored | None, ranks: int) -> str:
    if found is None:
        return f"Not every order was run: {ranks} simulated ranks did not answer. {_DRAWN}"
    if found.finished:
        return f"{Certificate(ranks, found.operations, found.orders, found.runs)} {_THE_SAME}"
    if found.found is not None:
        return f"Orders of {ranks} ranks differ, but not by more than rounding. {_DRAWN}"
    return (
        f"Not every order was run: {ranks} ranks have more than the {found.orders} distinguishable orders that "
        f"{found.runs} runs have shown. {_DRAWN}"
    )
