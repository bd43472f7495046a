"""What a check's outcome means for a library: strict both ways, against the file of known failures."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from conformance.grading.report import GRADER_ERROR, CheckReport
from conformance.library.known_failures import KnownFailure

Kind: TypeAlias = Literal["passed", "known", "new", "mended", "refused", "unclaimed", "not_run", "error"]


@dataclass(frozen=True)
class Ruling:
    """How an item ends.

    Attributes:
        kind: a failure may be known or new. `mended`: a check that passes, or refuses, is listed as a known failure.
        text: what is shown.
        reason: the failure in one line; "" if there is none.
    """

    kind: Kind
    text: str = ""
    reason: str = ""

    def updating(self, file: str) -> "Ruling":
        """Return how an item ends where the file of known failures is written: with what it will say."""
        if self.kind == "new":
            return Ruling("known", f"new in {file}: {self.reason}", self.reason)
        return Ruling("passed") if self.kind == "mended" else self


def rule(report: CheckReport, known: KnownFailure | None, file: str) -> Ruling:
    """Return how the item of a check ends.

    Args:
        report: what became of the check.
        known: its line in the file of known failures, if there is one.
        file: the name of that file, for messages.
    """
    said = "\n\n".join(report.explanation)
    match report.status:
        case "passed":
            return _mended("passes", known, file) if known else Ruling("passed")
        case "not_run" if known and not report.behind:
            return _mended(f"does not run ({report.message})", known, file)
        case "not_run" if report.refused or report.unclaimed:
            return Ruling("refused" if report.refused else "unclaimed", report.message)
        case "not_run":
            return Ruling("not_run", report.message)
        case "failed" if known:
            return Ruling("known", f"known failure: {known.reason}", first_line(report))
        case "failed":
            return Ruling("new", said, first_line(report))
        case "error":
            return Ruling("error", f"{GRADER_ERROR}\n\n{said}", first_line(report))
        case _:
            return Ruling("error", said, first_line(report))


def of_the_whole(report: CheckReport) -> Ruling:
    """Return how each item of a component ends that cannot be called: no file of known failures helps."""
    return Ruling("error", report.message, first_line(report))


def first_line(report: CheckReport) -> str:
    """Return a failure in one line: the known mistake that explains it, or the first line of what was seen."""
    return (report.diagnosis or report.message).strip().partition("\n")[0]


def _mended(what: str, known: KnownFailure, file: str) -> Ruling:
    lists = f"{file} lists it as a known failure"
    return Ruling("mended", f"This check {what}, and {lists}. Delete line {known.line}: {known}")
