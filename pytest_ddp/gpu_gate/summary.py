"""The verdict for people and machines: Markdown for a summary page, annotations for GitHub, JSON.

All that comes from the candidate is escaped: it must not write a heading, a link or a command of the CI system.
"""

import html
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from pytest_ddp.gpu_gate.devices import Gpu
from pytest_ddp.gpu_gate.junit import Case
from pytest_ddp.gpu_gate.policy import Policy
from pytest_ddp.gpu_gate.verdict import PASSED, Finding, forgiven

_MAX_TEXT = 400
_MAX_ROWS = 50


@dataclass
class Verdict:
    """All that the gate found out; it is filled as the gate goes on, and written at any end.

    Attributes:
        exit_code: of the gate; see `docs/ci.md`.
        findings: what speaks against the run.
        cases: the tests of the run.
        gpus: the GPUs before the run.
        torch: what the candidate's torch computed on.
        policy: what the base branch forgives.
    """

    exit_code: int = PASSED
    findings: list[Finding] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    torch: str = ""
    policy: Policy = field(default_factory=Policy)

    @property
    def counts(self) -> dict[str, int]:
        """The number of tests by status, and those that were executed."""
        by_status = Counter(case.status for case in self.cases)
        return {"executed": sum(case.executed for case in self.cases), **dict(sorted(by_status.items()))}


def to_json(verdict: Verdict) -> str:
    """Return the verdict for machines."""
    content = {
        "verdict": _word(verdict),
        "exit_code": verdict.exit_code,
        "findings": [finding.text for finding in verdict.findings],
        "counts": verdict.counts,
        "forgiven": [case.test for case in forgiven(verdict.cases, verdict.policy)],
        "gpus": [asdict(gpu) for gpu in verdict.gpus],
        "torch": verdict.torch,
    }
    return json.dumps(content, indent=2) + "\n"


def to_markdown(verdict: Verdict) -> str:
    """Return the summary page."""
    return "\n".join(_lines(verdict)) + "\n"


def _lines(verdict: Verdict) -> Iterator[str]:
    yield f"## GPU gate: {_word(verdict)} (exit code {verdict.exit_code})\n"
    if verdict.cases:
        yield ", ".join(f"{count} {status}" for status, count in verdict.counts.items()) + "\n"
    if verdict.findings:
        yield "### What speaks against this run\n"
        yield from _bullets([finding.text for finding in verdict.findings])
    if quarantined := [case for case in verdict.cases if verdict.policy.quarantine(case)]:
        yield "### Tests in quarantine\n"
        yield from ("| test | now | owner | expires | reason |", "|---|---|---|---|---|")
        yield from (_row(case, verdict.policy) for case in quarantined)
        yield ""
    if expected := [case for case in verdict.cases if case.status == "skipped" and verdict.policy.expects_skip(case)]:
        yield "### Expected skips\n"
        yield from _bullets([f"{case.test}: {case.message}" for case in expected])
    yield "### Machine\n"
    yield from _bullets([*map(str, verdict.gpus), *filter(None, [verdict.torch])])


def _bullets(texts: Sequence[str]) -> Iterator[str]:
    yield from (f"- {_plain(text)}" for text in texts[:_MAX_ROWS])
    if len(texts) > _MAX_ROWS:
        yield f"- and {len(texts) - _MAX_ROWS} more"
    yield ""


def _row(case: Case, policy: Policy) -> str:
    entry = policy.quarantine(case)
    cells = [case.test, case.status, *([entry.owner, str(entry.expires), entry.reason] if entry else [])]
    return f"| {' | '.join(map(_plain, cells))} |"


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    short = " ".join(text.split())
    short = short if len(short) <= _MAX_TEXT else f"{short[:_MAX_TEXT]}..."
    return "".join(f"\\{each}" if each in "\\`*_{}[]()#!|~" else each for each in html.escape(short, quote=False))


def annotations(verdict: Verdict) -> Iterator[str]:
    """Yield the findings as commands that GitHub shows beside the code, and failures in quarantine as warnings."""
    for finding in verdict.findings:
        yield _command("error", finding.text, finding.case)
    for case in forgiven(verdict.cases, verdict.policy):
        yield _command("warning", f"{case.test} failed; it is in quarantine", case)


def _command(kind: str, text: str, case: Case | None) -> str:
    place = {"title": "GPU gate"}
    if case and case.file:
        place |= {"file": case.file, "line": str(max(1, case.line))}
    properties = ",".join(f"{name}={_property(value)}" for name, value in place.items())
    detail = f"\n{case.message}" if case and case.message and case.message not in text else ""
    return f"::{kind} {properties}::{_data((text + detail)[:_MAX_TEXT])}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _word(verdict: Verdict) -> str:
    return "passed" if verdict.exit_code == PASSED else "failed"
