"""Runs of pytest in a process of their own: what only a whole process can show."""

import signal
import subprocess
import sys

import psutil

SUITE = """
import os, sys, threading
from pytest_ddp import distributed

@distributed
def test_it(ddp):
    print("pid", os.getpid(), flush=True)
    threading.Event().wait()
"""
SECONDS_TO_DIE = 30


def test_a_project_without_distributed_tests_imports_no_torch(pytester):
    pytester.makeconftest("""
        import sys

        def pytest_unconfigure():
            print("torch imported:", "torch" in sys.modules)
        """)
    pytester.makepyfile("import pytest_ddp\ndef test_it(): pass")
    for args in (["--collect-only"], []):
        result = pytester.runpytest_subprocess(*args)
        assert result.ret == 0
        result.stdout.fnmatch_lines(["torch imported: False"])


def test_nothing_survives_a_killed_pytest(pytester):
    pytester.makepyfile(SUITE)
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=pytester.path) as run:
        assert run.stdout is not None
        said = (line.partition("pid ") for line in run.stdout)
        ranks = {int(next(pid for _, found, pid in said if found)) for _ in range(2)}
        below = psutil.Process(run.pid).children(recursive=True)
        assert {process.pid for process in below} >= ranks
        run.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(below, timeout=SECONDS_TO_DIE)
    assert not alive


def test_nothing_is_left_when_pytest_returns(pytester):
    pytester.makepyfile(SUITE.replace("threading.Event().wait()", "print('pid', os.getppid(), flush=True)"))
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider"]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=pytester.path, check=True)
    pids = {int(line.partition("pid ")[2]) for line in run.stdout.splitlines() if "pid " in line}
    assert len(pids) == 3, "two ranks and their fork server"
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
