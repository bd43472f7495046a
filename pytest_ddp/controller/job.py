"""pytest in a job of torchrun, srun or mpirun: rank 0 runs the tests, every other process hosts ranks for it.

All processes of the job run the same command. They meet before pytest imports a test or a conftest file. Rank 0
becomes the controller. The other processes never collect anything: they serve until rank 0 is done, and leave with its
exit code.
"""

import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_ddp.errors import LaunchError, UsageError
from pytest_ddp.hosts.hosts import Hosts
from pytest_ddp.hosts.job import Job
from pytest_ddp.hosts.job_process import JobProcess, job_process, without_job
from pytest_ddp.hosts.ray_hosts import RayJob
from pytest_ddp.hosts.rendezvous import gather, serve
from pytest_ddp.planning.world import format_ranks
from pytest_ddp.pytest_internals import without_capture

job_key = pytest.StashKey[Job | RayJob]()
PLUGIN = "ddp-job"
_POLL_SECONDS = 0.5
_END_SECONDS = 20.0
_XDIST = (
    "pytest-xdist cannot share the ranks of a job among its workers: leave out -n and --dist, or start pytest without "
    "torchrun, srun or mpirun"
)
_RESTARTED = (
    "torchrun has started this job again (attempt {}). pytest-ddp runs the tests of a job once: a test that failed "
    "would fail again. Use --max-restarts=0"
)


def join(config: pytest.Config) -> None:
    """Join the job that this process belongs to, if any; in a process other than rank 0, serve and do not return.

    Raises:
        pytest.UsageError: the job cannot run these tests; the message says why.
    """
    try:
        us = job_process(os.environ, platform.node())
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    if us is None:
        return
    variables = without_job(os.environ)
    refusal = _refusal(config, us)
    if us.rank > 0:
        with without_capture(config):
            _serve(us, variables, refusal)
    os.environ.clear()
    os.environ.update(variables)
    if refusal:
        write_error_file(us.error_file, refusal)
        raise pytest.UsageError(refusal)
    _report_when_ended()
    config.stash[job_key] = job = Job(us, _gather(config, us), variables)
    config.pluginmanager.register(FirstFailure(job), PLUGIN)


def _refusal(config: pytest.Config, us: JobProcess) -> str:
    """Return why this job cannot run tests; "" if it can. All processes come to the same conclusion."""
    options = config.known_args_namespace
    if getattr(options, "numprocesses", None) or getattr(options, "tx", None):
        return _XDIST
    return _RESTARTED.format(us.attempt + 1) if us.attempt else ""


def _gather(config: pytest.Config, us: JobProcess) -> Hosts:
    def report(missing: Sequence[int]) -> None:
        ranks = format_ranks(tuple(missing))
        with without_capture(config):
            os.write(2, f"pytest-ddp: waiting for ranks {ranks} of this job of {us.size} ranks\n".encode())

    try:
        return gather(us, report)
    except LaunchError as error:
        raise pytest.UsageError(str(error)) from None


def _serve(us: JobProcess, variables: dict[str, str], refusal: str) -> NoReturn:
    """Be a rank host, and end with the exit code of the controller."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 gets it too, and says goodbye
    code, reason = int(pytest.ExitCode.USAGE_ERROR), refusal
    if not refusal:
        try:
            goodbye = serve(us, variables, _parent_lives())
            code, reason = goodbye.exit_code, goodbye.reason
        except LaunchError as error:
            code, reason = int(pytest.ExitCode.INTERNAL_ERROR), str(error)
    if code:
        write_error_file(us.error_file, f"this process hosted ranks for rank 0 of the job: {reason}", later=True)
    os._exit(code)


def _parent_lives() -> Callable[[], bool]:
    parent = os.getppid()
    return lambda: os.getppid() == parent


def _report_when_ended() -> None:
    """Let pytest report what it has when the launcher ends this process, or has ended itself."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    lives = _parent_lives()

    def watch() -> None:
        while lives():
            time.sleep(_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_END_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="pytest-ddp-parent", daemon=True).start()


def _interrupt(*_: object) -> None:
    """Interrupt pytest once: torchrun sends SIGTERM after Ctrl-C, and kills what is left 30 seconds later."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise KeyboardInterrupt


class FirstFailure:
    """Remembers the first failure of the run, and ends the job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.text = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the first test that fails."""
        self._keep(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep the first file that cannot be collected."""
        self._keep(report)

    def _keep(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and not self.text:
            self.text = f"{report.nodeid}\n{report.longreprtext}"

    def end_job(self, exit_code: int) -> None:
        """Let all processes of the job leave with this exit code; say why it is not 0."""
        text = self.text or f"pytest ended with exit code {exit_code}"
        if exit_code:
            write_error_file(self.job.us.error_file, text)
        self.job.hosts.say_goodbye(exit_code, f"it ended with exit code {exit_code}: {text.partition(chr(10))[0]}")


def ending_job(config: pytest.Config) -> Generator[None, int | None, int | None]:
    """Run pytest's main function between the two `yield`s of a hook; then end the job, if there is one."""
    job: FirstFailure | None = config.pluginmanager.get_plugin(PLUGIN)
    code: int | None = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        code = yield
    finally:
        if job is not None:
            job.end_job(int(code or 0))
    return code


def write_error_file(path: str, text: str, *, later: bool = False) -> None:
    """Write why this process fails, as torchrun reads it: of the processes of a node it names the earliest one."""
    if path:
        extra = {"py_callstack": text, "timestamp": str(int(time.time()) + later)}
        content = json.dumps({"message": {"message": text, "extraInfo": extra}})
        Path(path).write_text(content, encoding="utf-8")
