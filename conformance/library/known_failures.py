"""The file of known failures: one line per check, `component check reason`. Lines that begin with `#` are comments."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from pytest_ddp.errors import UsageError

_PARTS = 3
_LONGEST = 160  # characters of a reason that the judge proposes
_HEADER = "# What fails, for `conformance.verify`: component, check, reason. Checks that pass must not be listed.\n"


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


@dataclass(frozen=True)
class Change:
    """What became of a check in a run that updates the file: its verdict, and the failure in one line."""

    component: str
    check: str
    verdict: str
    reason: str


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


def updated(text: str, changes: Sequence[Change]) -> tuple[str, int, int]:
    """Return the text of the file after a run, and how many lines were added and deleted.

    Comments stay, and lines of checks that still fail, or did not run. New lines come at the end, in alphabetical
    order: the same in each run, however many workers there are.
    """
    mended = {(one.component, one.check) for one in changes if one.verdict == "mended"}
    gone = {line.line for line in _lines(text) if (line.component, line.check) in mended}
    kept = [line for number, line in enumerate(text.splitlines(), 1) if number not in gone]
    new = sorted(f"{one.component} {one.check} {_short(one.reason)}" for one in changes if one.verdict == "new")
    whole = "".join(f"{line}\n" for line in (*kept, *new))
    return (whole if text or not new else f"{_HEADER}{whole}"), len(new), len(gone)


def _short(reason: str) -> str:
    if len(reason) <= _LONGEST:
        return reason
    return f"{reason[:_LONGEST].rpartition(' ')[0]} ..."
