"""Declares the options of `pytest --pyargs conformance` to every pytest run, so that it works from any folder.

Loaded through an entry point: it must import neither torch nor the suite.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_ddp.errors import UsageError
from pytest_ddp.settings import configured_value, parse_world_sizes

if TYPE_CHECKING:
    from conformance.library.ci import Reports
    from conformance.library.hold import Held

_OURS = "conformance."  # so the names of properties of our items begin


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("ddp", "distributed tests (pytest-ddp)")
    adapters = "folder, file or module with adapters, for `pytest --pyargs conformance`"
    group.addoption("--ddp-submission", metavar="PATH", help=adapters)
    by_hand = "with --ddp-submission: fail components that use torch's own implementation"
    group.addoption("--ddp-from-scratch", action="store_true", help=by_hand)
    update = "write the files of known failures of `conformance.verify`, with today's reasons"
    group.addoption("--update-known-failures", action="store_true", help=update)
    scripts = "folder for scripts that show failures of `conformance.verify` (conformance, in pytest's cache)"
    group.addoption("--conformance-repro", metavar="DIR", type=Path, help=scripts)
    summary = "write a Markdown summary of the suites that `conformance.verify` makes"
    group.addoption("--conformance-summary", metavar="FILE", type=Path, help=summary)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Follow suites of libraries in the process that reports, which is no worker of xdist."""
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(_Suites(session.config), "conformance-suites")


class _Suites:
    """Hooks that follow the items of suites of libraries. Most runs have none, and import nothing for them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reports: Reports | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if any(str(name).startswith(_OURS) for name, _ in report.user_properties):
            if self._reports is None:
                from conformance.library.ci import Reports  # noqa: PLC0415  most runs need none of it

                self._reports = Reports()
            self._reports.add(report)

    def pytest_sessionfinish(self) -> None:
        if self._reports:
            option = self._config.getoption
            self._reports.write(updates=option("update_known_failures"), summary=option("conformance_summary"))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self._reports.lines if self._reports else ():
            terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a path that holds no adapters before anything is collected."""
    given = config.getoption("--ddp-submission")
    if given is None:
        return
    from conformance.submissions.location import locate  # noqa: PLC0415  most runs need none of it

    try:
        root = locate(given).root
    except UsageError as error:
        raise pytest.UsageError(f"--ddp-submission: {error}") from None
    for file in _configuration(config):
        if root is not None and file.is_relative_to(root):
            raise pytest.UsageError(
                f"--ddp-submission: {file} is the submission's, and would change how it is graded. Start pytest in "
                f"another folder, add `-c /dev/null --noconftest`, or use `pytest-ddp-grade {given}`."
            )


def _configuration(config: pytest.Config) -> Iterator[Path]:
    """Yield the files that configure this run: pytest's own settings and each conftest.py."""
    settings = config.inipath  # also a pyproject.toml that says nothing of pytest
    if settings is not None and re.search(r"^\[(tool[.:])?pytest\b", settings.read_text("utf-8"), re.MULTILINE):
        yield settings
    for plugin in config.pluginmanager.get_plugins():
        if Path(getattr(plugin, "__file__", None) or "").name == "conftest.py":
            yield Path(plugin.__file__)


@pytest.fixture(scope="session")
def _conformance_ranks(pytestconfig: pytest.Config) -> "Iterator[Held]":
    """The ranks of suites that `conformance.verify` makes."""
    from conformance.grading.report import WORLD_SIZE  # noqa: PLC0415  most runs need none of it
    from conformance.library.hold import held  # noqa: PLC0415

    sizes, seeded = configured_value(pytestconfig, "world_size"), configured_value(pytestconfig, "seed")
    world_size = max(parse_world_sizes(sizes[0])) if sizes else WORLD_SIZE
    if world_size == 1:
        pytest.fail("--ddp-world-size=1: a single rank has nothing to synchronise; give 2 or more", pytrace=False)
    with held(int(seeded[0]) if seeded else 0, world_size) as ranks:
        yield ranks
