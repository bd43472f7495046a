"""Schedules of simulated ranks as text: only the decisions that differ from the default, option 0."""

from collections.abc import Sequence


def parse_schedule(text: str) -> tuple[int, ...]:
    """Return the choices that a text such as "12:1,16:2" stands for: decision 12 takes option 1, decision 16 option 2.

    Decisions count from 0. A number alone is the option of the decision that follows the one before it, so "0,1" is
    "1:1". Raises ValueError for any other text.
    """
    choices: list[int] = []
    for part in filter(None, map(str.strip, text.split(","))):
        position, _, option = part.rpartition(":")
        where = position or str(len(choices))
        if not (where.isdecimal() and option.isdecimal() and int(where) >= len(choices)):
            raise ValueError(f"expected decisions such as 12:1,16:2 in rising order; got {text!r}")
        choices += [0] * (int(where) - len(choices)) + [int(option)]
    return tuple(choices)


def format_schedule(choices: Sequence[int]) -> str:
    """Return choices as a text that `parse_schedule` reads; empty for the default schedule."""
    return ",".join(f"{position}:{option}" for position, option in enumerate(choices) if option)
