"""On Windows the plugin loads, plain tests run, and distributed tests are refused with the way around."""

FAKE_WINDOWS = """
import os, signal, socket, sys
import psutil  # there is one for Windows

for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty", "readline"):
    sys.modules[name] = None  # importing it fails
for module, names in {
    os: "fork forkpty getpgid killpg pipe2 sched_getaffinity setsid ttyname waitid O_NOCTTY O_NONBLOCK WNOHANG",
    signal: "SIGALRM SIGCHLD SIGHUP SIGKILL SIGQUIT SIGRTMIN SIGUSR1 SIGUSR2 set_wakeup_fd setitimer",
    socket: "AF_UNIX recv_fds send_fds",
}.items():
    for name in names.split():
        delattr(module, name)
sys.platform = "win32"
"""


def test_plain_tests_run_and_distributed_ones_are_refused(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        fake_windows=FAKE_WINDOWS,
        test_suite="""
        import sys
        from pytest_ddp import distributed

        def test_plain():
            assert sys.platform == "win32"

        @distributed
        def test_distributed(ddp):
            raise AssertionError

        def test_ranks(ddp_ranks):
            ddp_ranks(world_size=2)
        """,
    )
    plugins = ["-p", "fake_windows", "-p", "pytest_ddp.plugin", "-p", "conformance.pytest_plugin"]
    result = pytester.runpytest_subprocess(*plugins, "--capture=sys")
    result.assert_outcomes(passed=1, errors=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "distributed tests do not run on Windows: *Run pytest in WSL (Windows Subsystem for Linux)*",
            "E *UsageError: distributed tests do not run on Windows: *",
        ]
    )
