"""`--pdb`, `breakpoint()` and related options on ranks, with and without a terminal."""

import os
import sys
from collections.abc import Callable, Iterator

import pexpect
import pytest

MARKED = """
import os, pdb, signal
import pytest
from pytest_ddp import distributed

def barrier():  # here, so that pytest itself imports no torch, which takes seconds
    from torch import distributed
    distributed.barrier()
"""
PROMPT = r"\(Pdb\) "
# In the controller an hour passes as soon as the file "later" exists.
AN_HOUR_PASSES = """
import os, time

real = time.monotonic

def pytest_configure(config):
    if not config.pluginmanager.has_plugin("ddp-rank"):
        time.monotonic = lambda: real() + 3600 * os.path.exists("later")
"""


class Terminal:
    """A run of pytest on a terminal."""

    def __init__(self, pytester, source: str, *args: str) -> None:
        pytester.makepyfile(test_suite=MARKED + source)
        command = ["-m", "pytest", "-p", "no:cacheprovider", "--color=no", *args]
        self.run = pexpect.spawn(
            sys.executable, command, cwd=str(pytester.path), encoding="utf-8", timeout=240, dimensions=(24, 200)
        )

    def expect(self, *patterns: str) -> None:
        for pattern in patterns:
            self.run.expect(pattern)

    def answer(self, *lines: str) -> None:
        """Type each line at a prompt."""
        for line in lines:
            self.run.expect(PROMPT)
            self.run.sendline(line)

    def ask(self, line: str, reply: str) -> None:
        """Type a line at a prompt and wait for the reply."""
        self.answer(line)
        self.expect(reply)

    def end(self) -> tuple[int | None, str]:
        """Return the exit code and the rest of the output."""
        text: str = self.run.read()
        self.run.close()
        return self.run.exitstatus, text


@pytest.fixture
def terminal(pytester) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(source: str, *args: str) -> Terminal:
        opened.append(Terminal(pytester, source, *args))
        return opened[-1]

    yield start
    for each in opened:
        each.run.close(force=True)


def test_post_mortem_of_the_root_cause_then_of_a_fixture_and_quitting(terminal):
    at = terminal(
        """
@distributed
def test_root(ddp):
    print("hello from", ddp.rank)
    mine = 40 + ddp.rank
    if ddp.rank == 1:
        raise ValueError("mine")
    barrier()

@pytest.fixture
def broken(ddp):
    yield
    local = 70 + ddp.rank
    assert ddp.rank != 1

@distributed
def test_teardown(broken): pass

@pytest.mark.xfail
@distributed
def test_expected(): raise ValueError

@distributed
def test_killed(ddp):
    if ddp.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)

@distributed(world_size=100_000)
def test_refused(): pass

@distributed
def test_last(): assert False

@distributed
def test_never(): pass
""",
        "--pdb",
    )
    at.expect("Captured stdout.stderr call .rank 0", "hello from 0", "rank 1 of 2 .* raised ValueError: mine")
    at.expect("entering PDB on rank 1")
    at.ask("p mine + 1000", "1041")
    at.run.expect(PROMPT)
    at.run.sendintr()  # Ctrl-C interrupts the debugger, not the run
    at.expect("--KeyboardInterrupt--")
    at.ask("c", "rank 1 of 2 .* raised AssertionError")
    at.expect("entering PDB on rank 1")
    at.ask("p local", "71")
    at.ask("c", "no debugger: rank 1 was killed by SIGKILL; it entered no collective, and left no frames")
    at.expect("no debugger: the test did not get as far as its ranks")
    at.expect("entering PDB on rank")
    at.answer("q")
    code, text = at.end()
    assert code == pytest.ExitCode.INTERRUPTED
    assert "Interrupted: Quitting debugger" in text
    assert "3 failed, 1 passed, 1 xfailed, 2 errors" in text
    assert "hello from" not in text, "what was shown before the debugger is not shown again"


def test_the_rank_and_the_debugger_can_be_chosen_and_plain_tests_are_debugged_by_pytest_itself(terminal, pytester):
    pytester.makepyfile(
        mydebugger="""
        import pdb

        class Mine(pdb.Pdb):
            def preloop(self):
                print("my own debugger", file=self.stdout)
        """
    )
    at = terminal(
        """
@distributed(world_size=3)
def test_it(ddp):
    mine = 40 + ddp.rank
    assert mine == 40

def work():
    from torch import distributed
    assert distributed.get_rank() == 0

def test_plain(ddp_ranks):
    here = 3000
    ddp_ranks(world_size=2).run(work)

from hypothesis import given, settings, strategies as st

@settings(database=None, deadline=None, derandomize=True)
@distributed
@given(st.integers())
def test_given(number):
    assert number < 10
""",
        "--pdb",
        "--ddp-pdb-rank=2",
        "--pdbcls=mydebugger:Mine",
    )
    at.expect("entering PDB on rank 2", "my own debugger")
    at.ask("p mine + 1000", "1042")
    at.ask("c", "rank 1 of 2 .* raised AssertionError")
    at.expect("entering PDB", "my own debugger")
    at.ask("p here + 1", "3001")
    at.ask("c", "entering PDB on rank")
    at.ask("p number + 100", "110")  # the smallest example
    at.answer("c")
    assert at.end()[0] == pytest.ExitCode.TESTS_FAILED


def test_breakpoints_stop_one_rank_and_the_clock(terminal, pytester):
    pytester.makeconftest(AN_HOUR_PASSES)
    at = terminal(
        """
@distributed(timeout=60)
def test_it(ddp):
    here = 100 + ddp.rank
    breakpoint()
    print("stepped over")
    barrier()
    there = 200 + ddp.rank
    barrier()

@distributed
def test_other_names():
    pdb.set_trace()
    pytest.set_trace()

@distributed
def test_quits():
    breakpoint()

@distributed
def test_never(): pass
""",
        "--ddp-pdb-rank=1",
    )
    at.expect("PDB on rank 1")
    at.ask("p here", "101")
    at.answer("open('later', 'w').close()")  # its deadline has passed
    at.ask("until 14", "stepped over")
    at.answer("b 16")
    at.ask("c", "PDB continue")
    at.ask("p there", "201")
    for _ in range(3):
        at.ask("c", "PDB on rank 1")
    at.answer("q")
    code, text = at.end()
    assert code == pytest.ExitCode.INTERRUPTED
    assert "Exit: Quitting debugger (rank 1)" in text
    assert "2 passed" in text


@pytest.fixture
def no_terminal() -> Iterator[None]:
    """Use a standard input that is not a terminal, as in a background job."""
    kept = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    yield
    os.dup2(kept, 0)
    os.close(kept)
    os.close(null)


@pytest.mark.usefixtures("no_terminal")
def test_without_a_terminal_pytest_says_why_there_is_no_debugger(run_suite):
    result = run_suite(
        """
        @distributed
        def test_fails(): raise ValueError("mine")

        @distributed
        def test_stops(): breakpoint()
        """,
        "--pdb",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "rank * raised ValueError: mine",
            "*no debugger: pytest's standard input is not a terminal*",
            "rank * raised *UsageError: breakpoint() on a rank: choose the rank *, for instance with *-rank=0; *",
        ]
    )


@pytest.mark.usefixtures("no_terminal")
def test_a_breakpoint_without_a_terminal_or_for_a_missing_rank(run_suite):
    suite = "@distributed\ndef test_it(): breakpoint()"
    result = run_suite(suite, "--ddp-pdb-rank=1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 1 of 2 * raised *UsageError: breakpoint() on a rank needs a terminal, but pytest's standard input *",
            "  rank 0: passed",
        ]
    )
    result = run_suite(suite, "--ddp-pdb-rank=2")
    result.stdout.fnmatch_lines(["rank * --ddp-pdb-rank=2, but this test's last rank is 1"])


def test_trace_and_a_wrong_rank_are_refused(run_suite):
    result = run_suite("@distributed\ndef test_it(): pass", "--trace")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["--trace does not reach the ranks*write breakpoint()*--ddp-pdb-rank=0"])
    result = run_suite("def test_it(): pass", "--ddp-pdb-rank=-1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--ddp-pdb-rank: expected an integer from 0; got '-1'"])
