"""Writes a script that asks a component of the training loop what a training loop would, in plain torch."""

from conformance.reproduction.script import Failure, Reading, data_lines, has_template, is_readable
from conformance.scenarios.drawn import Drawn

_IN_THE_NUMBERS = ("seed", "sizes", "samples")  # fields that the numbers alone depend on


def flat_text(failure: Failure, case: Drawn, seed: int) -> tuple[str, list[str]]:
    """Return a flat script, and what it does not show of the case: with anything there, it is of no use.

    Args:
        failure: what it has to show.
        case: what failed.
        seed: the integer that the case's numbers are drawn from.
    """
    template = f"{failure.component.name}/script.py.jinja"
    if not has_template(template):
        return "", ["what this component does"]
    given = max(failure.component.numbers(case, seed), key=len)  # a rank is given the same in each world
    if not is_readable(given):
        return "", ["so many numbers"]
    read = Reading(case)
    text = failure.render(template, s=read, world_size=read.world_size, data=list(data_lines("GIVEN", given)))
    return text, read.unread(*_IN_THE_NUMBERS)
