"""A bug, how it is planted in right code, and the check that is to catch it."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from evidence import code_of, digest

from conformance.grading.report import CheckReport

_TESTS = Path(__file__).parents[1]
_PARTS = _TESTS / "conformance" / "parts"
_EXAMPLE = _TESTS.parent / "examples" / "correct"
_WIDTH = 60  # characters of code in a cell of the table


def right(component: str) -> dict[str, str]:
    """Return the files of a right submission of a component, by name without suffix."""
    part = _PARTS / f"{component}.py"
    if part.exists():
        return {"adapters": part.read_text(encoding="utf-8")}
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(_EXAMPLE.glob("*.py"))}


# In right wrappers: it refuses what some bugs do.
REFUSES_SENT = (
    "        if self.bucket_of[param].handle:\n"
    '            raise RuntimeError("backward adds to a gradient that was sent: '
    'use checkpoint(..., use_reentrant=False)")\n'
)


class Bug(NamedTuple):
    """Lines of a right submission that go wrong, the check that must fail, and words that its report must hold."""

    component: str
    old: str
    new: str
    check: str
    words: str = ""
    without: str = ""  # lines of the right submission that would refuse what the bug does

    def __str__(self):
        return f"{self.component}: {self.check}: {_brief(self.old, 40)} becomes {_brief(self.new, 90) or 'nothing'}"

    def planted(self) -> dict[str, str]:
        """Return the files of the submission with the bug."""
        texts = right(self.component)
        if not any(self.old in text for text in texts.values()):
            raise ValueError(f"the right {self.component} has no {self.old!r}")
        return {name: text.replace(self.old, self.new).replace(self.without, "") for name, text in texts.items()}

    @property
    def key(self) -> str:
        """A digest of the wrong code, the check and the words."""
        return _key(self)

    @property
    def cells(self) -> tuple[str, ...]:
        """What the table of bugs says of it."""
        return _code(self.old), _code(self.new), f"`{self.check}`", self.words.replace("|", "\\|")


@cache
def _key(bug: Bug) -> str:
    return digest([bug.component, *map(code_of, bug.planted().values()), bug.check, bug.words])


def fault(bug: Bug, report: CheckReport) -> str:
    """Return how the report of its check misses a bug; empty if the check failed and said the words."""
    text = f"{report.message}\n{report.diagnosis}"
    if report.status == "failed" and bug.words in text:
        return ""
    return f"{bug.check} {report.status}, and was to say {bug.words!r}: {text}"


def _brief(code: str, length: int) -> str:
    return " ".join(code.split())[:length].strip()


def _code(text: str) -> str:
    line = " ".join(text.split()).replace("`", "'")
    brief = (line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…").replace("|", "\\|")
    return f"`{brief}`" if brief else "nothing"
