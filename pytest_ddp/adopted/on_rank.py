"""Runs adopted tests on a rank, which does the work of the harness's main process and of one of its processes.

torch's classes run setUp and tearDown in a main process, and the test itself in processes or threads that setUp starts.
On a rank, setUp and tearDown run where the test runs. Instead of starting processes, every rank takes over the
environment that setUp made on rank 0. Instead of waiting for processes, it runs the test as its own process would.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest

from pytest_ddp.adopted.harness_internals import (
    PROCESSES,
    THREADS,
    harness_of,
    reason_of_exit_code,
    replace_processes,
    replace_threads,
    replace_workers,
    run_process,
    run_thread,
    run_worker,
)
from pytest_ddp.context import DDPContext
from pytest_ddp.items import OPTIONS_OF_CLASS, is_adopted
from pytest_ddp.pytest_internals import set_fixture_value

_OWN_VARIABLES = {"RANK", "LOCAL_RANK", "PYTEST_CURRENT_TEST"}
_FILE_NAME = "ddp_file_name"  # attribute of a test case: the name of rank 0's file, once it has been taken over


class AdoptedTests:
    """Hooks of a rank's session."""

    def __init__(self, context: DDPContext) -> None:
        self._context = context
        self._part = _Part(context)
        self._replaced: set[type] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> None:
        """Let the harness of an adopted class start no processes, before the first instance of the class is made."""
        if isinstance(collector, pytest.Class) and OPTIONS_OF_CLASS in collector.stash:
            harness = harness_of(collector.obj)
            if harness is not None and harness not in self._replaced:
                self._replaced.add(harness)
                self._part.replace(harness)

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> object:
        """Give all ranks of an adopted test one `tmp_path`, as all processes of the harness have one."""
        if fixturedef.argname != "tmp_path" or not is_adopted(request.node):
            return None
        return set_fixture_value(fixturedef, request, self._context.shared_path)

    def pytest_runtest_makereport(self, call: pytest.CallInfo[Any]) -> None:
        """Turn an exit code by which torch's decorators skip a test into a skip; in tests that are not adopted too."""
        if call.excinfo is not None and isinstance(call.excinfo.value, SystemExit):
            reason = reason_of_exit_code(call.excinfo.value.code)
            if reason is not None:
                call.excinfo = pytest.CallInfo.from_call(partial(pytest.skip, reason), call.when).excinfo


@dataclass
class _Part:
    """What this rank does of an adopted test."""

    context: DDPContext

    def replace(self, harness: type) -> None:
        """Replace the methods by which a harness starts processes or threads and waits for them."""
        if harness.__name__ == PROCESSES:
            replace_processes(harness, self._take_over, self._be_process)
        elif harness.__name__ == THREADS:
            replace_threads(harness, lambda test: run_thread(test, self.context.rank, self.context.world_size))
        else:
            replace_workers(harness, self._be_worker)

    def _take_over(self, test: Any) -> None:
        """Take over the environment of rank 0 and the name of its file, as processes that it starts would."""
        store = self.context.store
        if self.context.rank == 0:
            store.set("setUp", json.dumps([test.file_name, dict(os.environ)]))
        file_name, variables = json.loads(store.get("setUp"))
        os.environ.update({name: value for name, value in variables.items() if name not in _OWN_VARIABLES})
        vars(test)[_FILE_NAME] = file_name

    def _be_process(self, test: Any, method: Any) -> None:
        """Run the test here; its exit code must be the one that the test expects of its processes."""
        expected = test.special_return_code_checks.get(method, 0)
        if expected < 0:
            pytest.fail(_KILLED.format(-expected), pytrace=False)
        if not hasattr(test, _FILE_NAME):
            self._take_over(test)
        code = _exit_code(partial(run_process, test, self.context.rank, vars(test)[_FILE_NAME]))
        if method not in test.skip_return_code_checks:
            _check(code, expected)

    def _be_worker(self, test: Any) -> None:
        file_name = Path(self.context.shared_path) / "rendezvous"
        _check(_exit_code(partial(run_worker, test, self.context.rank, self.context.world_size, str(file_name))))


_KILLED = (
    "this test cannot be adopted: it expects that signal {} ends its processes, but ranks run further tests; leave its "
    "class out of ddp_adopt"
)


def _exit_code(run: Callable[[], None]) -> object:
    """Call a function; return the exit code with which it ends this process, 0 if it returns."""
    try:
        run()
    except SystemExit as end:
        return end.code or 0
    return 0


def _check(code: object, expected: int = 0) -> None:
    if code == expected:
        return
    if reason := reason_of_exit_code(code):
        raise SkipTest(reason)
    pytest.fail(f"the test ended its process with exit code {code}; it expects {expected}", pytrace=False)
