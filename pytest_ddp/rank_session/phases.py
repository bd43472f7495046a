"""Runs one phase of a test with pytest's own functions, announces an exception, and makes an answer of the report."""

import builtins
import json
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from pytest_ddp.errors import BlocksInsideBackward, CollectiveMismatch
from pytest_ddp.outcomes.text_limits import bounded
from pytest_ddp.protocol.messages import Raising
from pytest_ddp.protocol.phases import EXIT_KIND, ItemId, PhaseAnswer, When
from pytest_ddp.pytest_internals import call_and_report
from pytest_ddp.rank.worker import Failed, Rank, SkipRun

_BELOW_THE_CALL = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


def run_phase(item: pytest.Item, when: When, **arguments: Any) -> pytest.TestReport:
    """Return pytest's report of the phase; raise `Failed` if the test asks for the end of the run (`pytest.exit`)."""
    try:
        return call_and_report(item, when, log=False, **arguments)
    except pytest.exit.Exception as wish:
        raise Failed(EXIT_KIND, wish.msg, "", json.dumps(wish.returncode).encode()) from None
    except KeyboardInterrupt as interrupt:  # pytest would stop the session; on a rank it is an ordinary failure
        call = pytest.CallInfo.from_call(partial(_raise, interrupt), when)
        report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
        return report


def _raise(error: BaseException) -> NoReturn:
    raise error


class ExceptionHooks:
    """Announces an exception before pytest formats it, which takes time: the controller then waits for the answer.

    Exceptions in subtests do not reach these hooks, because the test goes on.
    """

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        """Announce what a phase raises; end the traceback of a refused operation at the line that called it."""
        __tracebackhide__ = True
        try:
            return (yield)
        except BaseException as error:
            Rank.current.send(Raising())
            if isinstance(error, CollectiveMismatch | BlocksInsideBackward):
                end_at_caller(error)
            raise

    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


def end_at_caller(error: BaseException) -> None:
    """Drop the frames of torch and of this package at the end of a traceback."""
    last = frame = error.__traceback__
    while frame is not None:
        if not frame.tb_frame.f_code.co_filename.startswith(_BELOW_THE_CALL):
            last = frame
        frame = frame.tb_next
    if last is not None:
        last.tb_next = None


def answer_for(
    config: pytest.Config, report: pytest.TestReport, subtests: Sequence[pytest.TestReport], **left: Any
) -> PhaseAnswer:
    """Return the answer for a phase that passed; `left` are fields about the whole test.

    Raises:
        Failed: the phase or one of its subtests failed, or the phase failed as expected; it holds the answer.
        SkipRun: the test was skipped; it holds the answer.
    """
    answer = replace(_answer(config, report, subtests), **left)
    if report.failed or (report.skipped and hasattr(report, "wasxfail")):
        raise Failed(*_kind_and_message(report), report.longreprtext, answer.encode())
    failed = [subtest for subtest in subtests if subtest.failed]
    if failed:
        kind, message = _kind_and_message(failed[0])
        contains = f"contains {len(failed)} failed subtest{'s' if len(failed) > 1 else ''}"
        raise Failed(f"{kind} in a subtest", message, contains, answer.encode())
    if isinstance(report.longrepr, tuple):
        raise SkipRun(report.longrepr[2].removeprefix("Skipped: "), answer.encode())
    return answer


def _answer(config: pytest.Config, report: pytest.TestReport, subtests: Sequence[pytest.TestReport]) -> PhaseAnswer:
    """Return a report as plain data; of a phase that passed, as most do, only its duration and sections."""
    plain_subtests = tuple(_plain(config, subtest) for subtest in subtests)
    if report.passed and not report.user_properties and not hasattr(report, "wasxfail"):
        return PhaseAnswer(passed=report.duration, sections=sections_of(report), subtests=plain_subtests)
    plain = _plain(config, report)
    return PhaseAnswer({**plain, "sections": []}, sections=plain["sections"], subtests=plain_subtests)


def _plain(config: pytest.Config, report: pytest.TestReport) -> dict[str, Any]:
    data: dict[str, Any] = config.hook.pytest_report_to_serializable(config=config, report=report)
    return {**data, "longrepr": bounded(data["longrepr"]), "sections": sections_of(report)}


def sections_of(report: pytest.TestReport) -> tuple[tuple[str, str], ...]:
    """Return the output and logs in a report, each cut to a size that can be sent."""
    return tuple((title, bounded(text)) for title, text in report.sections)


def _kind_and_message(report: pytest.TestReport) -> tuple[str, str]:
    """Return the exception's type and message, as far as pytest's report has them."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        errors = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
        text = errors[0] if errors else report.longreprtext
        kind, _, message = text.partition(": ")
        return (kind, message) if isinstance(getattr(builtins, kind, None), type) else ("an error", text)
    kind, _, message = crash.message.partition(": ")
    is_name = kind.replace("<locals>.", "").replace(".", "_").isidentifier()
    return (kind, message) if is_name else ("AssertionError", crash.message)


def raise_not_found(config: pytest.Config, test: ItemId, collected: pytest.CollectReport | None) -> NoReturn:
    """Raise why this rank does not find a test that the controller found.

    `collected` is the report of the collection that failed or skipped here; it is None if collection passed.

    Raises:
        LookupError: collection passed, but the test is not there.
        Failed: the test's module, or a conftest file, failed here.
        SkipRun: the module was skipped here.
    """
    if collected is not None:
        location = (test.path, None, test.nodeid)
        report = pytest.TestReport(test.nodeid, location, {}, collected.outcome, collected.longrepr, "setup")
        answer_for(config, report, ())
    raise LookupError(
        f"this rank does not find {test.nodeid} in {test.path}, where the controller found it: "
        "tests must be collected alike everywhere, so their names and parameters may not be random"
    )
