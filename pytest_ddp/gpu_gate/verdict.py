"""The verdict: what speaks against the run. Pure: it is computed from what the gate saw and from the report."""

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_ddp.gpu_gate.candidate import Ended
from pytest_ddp.gpu_gate.devices import Gpu
from pytest_ddp.gpu_gate.junit import Case
from pytest_ddp.gpu_gate.policy import Policy

PASSED, FAILED, MISUSED, UNFIT = 0, 1, 2, 3
CONTEXT_MIB = 64  # every process that uses a GPU holds more than this
_TESTS_FAILED = 1  # pytest's exit code


@dataclass(frozen=True)
class Finding:
    """A sentence that fails the gate, and the test that it is about, if it is about one."""

    text: str
    case: Case | None = None


@dataclass(frozen=True)
class Seen:
    """What the gate saw of a run with its own eyes.

    Attributes:
        ended: how the tests ended.
        before: the GPUs before the run.
        peak_mib: the most memory that was held on each GPU during the run, by its uuid.
        full: a sentence for each GPU whose memory was still held after the run.
    """

    ended: Ended
    before: Sequence[Gpu] = ()
    peak_mib: Mapping[str, int] = field(default_factory=dict)
    full: Sequence[str] = ()


def judge(cases: Sequence[Case], seen: Seen, policy: Policy, *, min_executed: int, today: dt.date) -> list[Finding]:
    """Return all that speaks against the run; the gate is green if there is nothing."""
    return [
        *_failures(cases, policy),
        *_skips(cases, policy),
        *(map(Finding, _counts(cases, min_executed))),
        *(map(Finding, _ending(cases, seen.ended))),
        *(map(Finding, _devices(cases, seen, policy.gpus))),
        *(map(Finding, policy.complaints(cases, today))),
    ]


def forgiven(cases: Sequence[Case], policy: Policy) -> list[Case]:
    """Return the tests whose failure a quarantine forgives."""
    return [case for case in cases if case.status in {"failed", "error"} and policy.quarantine(case)]


def _failures(cases: Sequence[Case], policy: Policy) -> Iterator[Finding]:
    for case in cases:
        if case.status in {"failed", "error"} and not policy.quarantine(case):
            yield Finding(f"{case.test} {'failed' if case.status == 'failed' else 'has an error'}", case)


def _skips(cases: Sequence[Case], policy: Policy) -> Iterator[Finding]:
    for case in cases:
        if case.status == "skipped" and not policy.expects_skip(case):
            yield Finding(f"{case.test} was skipped, and no [[skip]] expects it: {case.message}", case)


def _counts(cases: Sequence[Case], least: int) -> Iterator[str]:
    executed = sum(case.executed for case in cases)
    if executed < least:
        reasons = Counter(case.message for case in cases if case.status == "skipped")
        why = "".join(f"; {count} skipped: {reason}" for reason, count in reasons.most_common())
        yield f"{executed} tests were executed, and at least {least} are required{why}"


def _ending(cases: Sequence[Case], ended: Ended) -> Iterator[str]:
    """Compare pytest's exit code with its report: the two were written by different code."""
    failed = any(case.status in {"failed", "error"} for case in cases)
    if ended.exit_code is None:
        yield "the tests did not end in time, and were killed"
    elif ended.exit_code not in {0, _TESTS_FAILED}:
        yield f"pytest ended with exit code {ended.exit_code}: the end of the log says why"
    elif failed != bool(ended.exit_code):
        report = "has failures" if failed else "has none: the end of the log says why"
        yield f"pytest ended with exit code {ended.exit_code}, but its report {report}"
    if ended.left:
        yield f"processes outlived the tests and were killed: {', '.join(ended.left)}"


def _devices(cases: Sequence[Case], seen: Seen, required: int) -> Iterator[str]:
    if any(case.executed for case in cases):
        for gpu in seen.before[:required]:
            if seen.peak_mib.get(gpu.uuid, 0) - gpu.used_mib < CONTEXT_MIB:
                yield f"GPU {gpu.index} was never used: nvidia-smi saw no memory of it held while the tests ran"
    yield from (f"after the tests, {sentence}" for sentence in seen.full)
