"""Runs of pytest in a process of their own: what only a whole process can show."""

import subprocess
import sys

import psutil

SUITE = """
import os
from pytest_ddp import distributed

@distributed
def test_it(ddp):
    print("pid", os.getpid(), flush=True)
    print("pid", os.getppid(), flush=True)
"""


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


def test_nothing_is_left_when_pytest_returns(pytester):
    pytester.makepyfile(SUITE)
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider"]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=pytester.path, check=True)
    pids = {int(line.partition("pid ")[2]) for line in run.stdout.splitlines() if "pid " in line}
    assert len(pids) == 3, "two ranks and their fork server"
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
