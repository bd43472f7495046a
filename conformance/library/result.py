"""What became of one item, as properties of its test report: they reach JUnit's XML, and cross from xdist's workers.

Nothing here imports torch: the process that reports may be xdist's controller, which runs no tests.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from conformance.library.scripts import shown

if TYPE_CHECKING:
    from conformance.grading.report import CheckReport
    from conformance.library.ruling import Ruling
    from conformance.library.suite import Suite

_PREFIX = "conformance."


@dataclass(frozen=True)
class Result:
    """One item.

    Attributes:
        component, check: what was held to what.
        level: core or extended.
        verdict: the kind of its ruling (see `ruling`).
        text: why it ended so, in one line; "" if it passed.
        reason: the failure in one line; "" if there is none.
        examples: how many scenarios or cases were tried.
        left_out: the claims that left out scenarios of the check, though not all.
        known_failures: the path of the file of known failures; "" if there is none.
        script: the path of the script that shows the failure; "" if there is none.
    """

    component: str
    check: str
    level: str
    verdict: str
    text: str
    reason: str
    examples: str
    left_out: str
    known_failures: str
    script: str

    @classmethod
    def of(cls, suite: "Suite", component: str, check: str, report: "CheckReport", ruling: "Ruling") -> Self:
        """Return what became of a check."""
        return cls(
            component=component,
            check=check,
            level=report.level,
            verdict=ruling.kind,
            text=ruling.reason if ruling.kind in {"new", "error"} else ruling.text.partition("\n")[0],
            reason=ruling.reason,
            examples=str(report.examples),
            left_out="" if report.unclaimed else "; ".join(report.left_out),
            known_failures=str(suite.known_file or ""),
            script=report.script and shown(report.script),
        )

    @property
    def known_file(self) -> Path | None:
        """The file of known failures."""
        return Path(self.known_failures) if self.known_failures else None

    def to_properties(self) -> list[tuple[str, object]]:
        """Return what a test report carries."""
        return [(f"{_PREFIX}{name}", value) for name, value in vars(self).items()]

    @classmethod
    def from_properties(cls, properties: Iterable[tuple[str, Any]]) -> Self | None:
        """Return the result that a test report carries; None if it is the report of another test."""
        ours = {str(name).removeprefix(_PREFIX): value for name, value in properties if str(name).startswith(_PREFIX)}
        return cls(**ours) if set(ours) == {one.name for one in fields(cls)} else None
