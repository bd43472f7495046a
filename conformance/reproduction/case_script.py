"""Writes a script that asks a component of the training loop what a training loop would, in plain torch."""

from conformance.reproduction.script import Failure, Reading, data_lines, has_template, is_readable
from conformance.scenarios.case import Case
from conformance.workload.case_numbers import draw_feed


def flat_text(failure: Failure, case: Case, seed: int) -> tuple[str, list[str]]:
    """Return a flat script, and what it does not show of the case: with anything there, it is of no use.

    Args:
        failure: what it has to show.
        case: what failed.
        seed: the integer that the case's numbers are drawn from.
    """
    template = f"{failure.component}/script.py.jinja"
    if not has_template(template):
        return "", ["what this component does"]
    given = max(draw_feed(case, seed), key=len)  # a rank is given the same in each world: the largest holds all
    if not is_readable(given):
        return "", ["too many numbers to print"]
    read = Reading(case)
    text = failure.render(template, s=read, world_size=read.world_size, data=list(data_lines("GIVEN", given)))
    return text, read.unread("seed")
