"""Texts that a submission had a hand in, fit for a terminal, a table and a page."""

import re
from collections.abc import Iterable

from pytest_ddp.outcomes.text_limits import both_ends, one_line

_MOST_NAMES = 20
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Return a text whose control characters are shown, such as `\x1b`, since a terminal would obey them.

    The middle of a very long text is left out.
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), both_ends(text))


def visible_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the first of some names that a submission may have made up, sorted, each in a line."""
    return tuple(one_line(visible(name)) for name in sorted(names)[:_MOST_NAMES])
