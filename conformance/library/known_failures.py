"""The file of known failures: one line per check, `component check reason`. Lines that begin with `#` are comments."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from pytest_ddp.errors import UsageError

_PARTS = 3


@dataclass(frozen=True)
class KnownFailure:
    """A line of the file.

    Attributes:
        component, check: what fails.
        reason: why it fails, or why that is accepted.
        line: the number of the line; the first one is 1.
    """

    component: str
    check: str
    reason: str
    line: int

    def __str__(self) -> str:
        return f"{self.component} {self.check} {self.reason}"


Known = dict[tuple[str, str], KnownFailure]


def read(file: Path, checks: Mapping[str, Collection[str]]) -> Known:
    """Return the known failures by component and check; none if there is no such file.

    Args:
        file: the file.
        checks: the ids of the checks of each component that is verified.

    Raises:
        UsageError: a line has no reason, names no check that is verified, or repeats another line. All such lines are
            in the message.
    """
    known: Known = {}
    wrong: list[str] = []
    for line in _lines(file.read_text(encoding="utf-8") if file.is_file() else ""):
        if mistake := _mistake(line, checks, known):
            wrong.append(f"{file.name}, line {line.line}: {mistake}")
        known.setdefault((line.component, line.check), line)
    if wrong:
        raise UsageError("\n".join(wrong))
    return known


def _lines(text: str) -> Iterator[KnownFailure]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            component, check, reason = (*line.split(None, _PARTS - 1), "", "")[:_PARTS]
            yield KnownFailure(component, check, reason.strip(), number)


def _mistake(line: KnownFailure, checks: Mapping[str, Collection[str]], known: Known) -> str:
    """Say what is wrong with a line; "" if nothing is."""
    if line.component not in checks:
        return f"`{line.component}` is not verified here; verified are {', '.join(checks)}. Correct or delete the line."
    if line.check not in checks[line.component]:
        alike = get_close_matches(line.check, checks[line.component], n=1)
        meant = f" Is `{alike[0]}` meant?" if alike else ""
        return f"{line.component} has no check `{line.check}`.{meant} Correct or delete the line."
    if not line.reason:
        return f"`{line.component} {line.check}` has no reason. Write one behind it: `component check reason`."
    if before := known.get((line.component, line.check)):
        return f"`{line.component} {line.check}` is in line {before.line} already. Delete one of the two lines."
    return ""
