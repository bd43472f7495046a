"""A rank's own pytest session: same root, ini, conftest files and options as the controller's.

The controller names a test and a phase; the rank collects the test's file on first demand and runs the phase with
pytest's own machinery, so fixtures, assertion rewriting, skip and xfail work as in any process. Setup answers its
run from inside pytest's protocol for the test and keeps serving there until teardown is done, because the protocol's
wrappers (warnings, assertion rewriting) must enclose all three phases.
"""

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.config import Config
from _pytest.runner import call_and_report

from pytest_ddp.messages import Ready
from pytest_ddp.phase import ItemId, PhaseRequest, When, encode_report
from pytest_ddp.worker import Answered, Failed, Rank, SkipRun

PLUGIN = "ddp-rank"


@dataclass(frozen=True)
class SessionStart:
    """What a rank needs to start a pytest session like the controller's."""

    args: list[str]
    options: dict[str, Any]
    cwd: str
    basetemp: str
    workerinput: dict[str, Any]


def host(body: bytes) -> None:
    """Run a pytest session whose loop serves the controller."""
    start: SessionStart = pickle.loads(body)  # noqa: S301  made by the controller, which we are a part of
    os.chdir(start.cwd)
    config = Config.fromdictargs(start.options, start.args)
    config.option.basetemp = str(Path(start.basetemp) / f"ddp-rank{Rank.current.launch.rank}-{os.getpid()}")
    # Many plugins take this attribute of xdist's workers as the word to leave reports and caches to the controller.
    config.workerinput = start.workerinput  # type: ignore[attr-defined]
    config.pluginmanager.register(RankPlugin(Rank.current), PLUGIN)
    config.hook.pytest_cmdline_main(config=config)


def phase(body: bytes) -> bytes:
    """Run one phase of one test (a `PhaseRequest`); return pytest's report, serialised."""
    return RankPlugin.current.phase(PhaseRequest.decode(body))


def _kind_and_message(report: pytest.TestReport) -> tuple[str, str]:
    """Return the exception's type and message as far as pytest's report still tells them."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        errors = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
        return "an error", errors[0] if errors else report.longreprtext
    kind, colon, message = crash.message.partition(": ")
    return (kind, message) if colon and kind.replace(".", "_").isidentifier() else ("AssertionError", crash.message)


class RankPlugin:
    """Turns a pytest session into a rank's."""

    current: "RankPlugin"

    def __init__(self, rank: Rank) -> None:
        RankPlugin.current = self
        self.rank = rank
        self._collected: dict[str, dict[str, pytest.Item]] = {}
        self._item: pytest.Item | None = None
        self._subtests: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep failed subtests: their test's own report, which is never logged here, does not show them."""
        if report.failed:
            self._subtests.append(report)

    def pytest_collection(self, session: pytest.Session) -> bool:
        """Collect nothing: tests are collected when they are asked for."""
        self._session = session
        return True

    def pytest_runtestloop(self) -> bool:
        """Serve the controller instead of running tests."""
        self.rank.send(Ready())
        self.rank.serve()
        return True

    @property
    def item(self) -> Any:
        """The test at hand."""
        if self._item is None:
            raise RuntimeError("no test is being run")
        return self._item

    def phase(self, request: PhaseRequest) -> bytes:
        """Run one phase; raise what tells the controller about a failure."""
        if request.when == "setup":
            self._protocol(request.test)
        if self._item is None:  # the test never got as far as its protocol: nothing is left to do
            return b""
        following = self._find(request.following) if request.following else None
        return self._report(request.when, **({"nextitem": following} if request.when == "teardown" else {}))

    def _protocol(self, test: ItemId) -> None:
        item = self._find(test)
        self._session._setupstate.teardown_exact(item)  # noqa: SLF001  another test may have been announced
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        raise Answered

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        """Run setup, answer, and serve the other phases from here."""
        item._initrequest()  # type: ignore[attr-defined]  # noqa: SLF001  as pytest's own protocol does
        self._item = item
        try:
            self._answer_setup()
            self.rank.serve(until=lambda: self._item is None)
        finally:
            self._item = None
            item._request = False  # type: ignore[attr-defined]  # noqa: SLF001
            item.funcargs = None  # type: ignore[attr-defined]
        return True

    def _answer_setup(self) -> None:
        try:
            self.rank.answer("returned", body=self._report("setup"))
        except Failed as failed:
            self.rank.answer_failed(failed)
        except SkipRun as skip:
            self.rank.answer("skipped", message=str(skip), body=skip.body)

    def _report(self, when: When, **arguments: Any) -> bytes:
        """Run a phase of the current item with pytest's own functions."""
        item = self.item
        if when == "teardown":
            self._item = None
        report = call_and_report(item, when, log=False, **arguments)
        body = encode_report(item.config.hook.pytest_report_to_serializable(config=item.config, report=report))
        if report.failed or (report.skipped and hasattr(report, "wasxfail")):
            raise Failed(*_kind_and_message(report), report.longreprtext, body)
        if self._subtests:
            failed, self._subtests = self._subtests, []
            kind, message = _kind_and_message(failed[0])
            raise Failed(f"{kind} in a subtest", message, "\n\n".join(sub.longreprtext for sub in failed), b"")
        if isinstance(report.longrepr, tuple):
            raise SkipRun(report.longrepr[2], body)
        return body

    def _find(self, test: ItemId) -> pytest.Item:
        if test.path not in self._collected:
            items = self._session.perform_collect([test.path], genitems=True)
            self._collected[test.path] = {item.nodeid: item for item in items}
        try:
            return self._collected[test.path][test.nodeid]
        except KeyError:
            raise LookupError(
                f"this rank does not find {test.nodeid} in {test.path}, where the controller found it: "
                "tests must be collected alike everywhere, so their names and parameters may not be random"
            ) from None
