"""Plugins beside ours: what each of them promises holds for tests on ranks too."""

import re
import signal
import sys

import psutil
import pytest
from hanging import hangs
from survivors import survivors

from pytest_ddp.pool.deadline import Deadline
from pytest_ddp.pool.launcher import shared_launcher

SHUFFLED = """
@pytest.mark.parametrize("number", range(8))
@distributed
def test_one(ddp, number, request):
    assert not request.config.pluginmanager.has_plugin("randomly")
    with request.path.with_name(f"rank{ddp.rank}").open("a") as file:
        print(number, file=file)
"""


def test_randomly_shuffles_and_the_ranks_follow(run_suite, pytester):
    result = run_suite(SHUFFLED, "-v", "-p", "randomly", "-p", "no:xdist", "--randomly-seed=3")
    result.assert_outcomes(passed=8)
    order = re.findall(r"test_one\[(\d)\] PASSED", result.stdout.str())
    assert order != sorted(order)
    assert [(pytester.path / f"rank{rank}").read_text().split() for rank in range(2)] == [order, order]


HANGING = """
@distributed
def test_warms_up(ddp):
    dist.barrier()

@pytest.mark.timeout(100, method="signal")
@distributed
def test_hangs(ddp):
    print("hanging", flush=True)
    if ddp.rank == 1:
        threading.Event().wait()
    dist.barrier()

def hang():
    print("hanging", flush=True)
    threading.Event().wait()

@pytest.mark.timeout(100, method="signal")
def test_hangs_too(ddp_ranks):
    ddp_ranks(world_size=2).run(hang)

@distributed
def test_next(ddp):
    dist.barrier()
"""


def ranks_alive() -> set[psutil.Process]:
    """Return the ranks of this process's fork server, which other tests use too."""
    server = shared_launcher()._server
    return set(psutil.Process(server.pid).children()) if server else set()


@pytest.fixture
def alarm_when_all_hang(monkeypatch):
    """Give pytest-timeout its alarm while ranks are waited for, as soon as they hang: no machine is too slow for it."""
    check_waiting = Deadline.check_waiting

    def check_and_alarm(deadline):
        if deadline.pending and all(hangs(rank) for rank in deadline.pending):
            signal.raise_signal(signal.SIGALRM)
        return check_waiting(deadline)

    monkeypatch.setattr(Deadline, "check_waiting", check_and_alarm)


@pytest.mark.usefixtures("alarm_when_all_hang")
def test_timeout_is_an_outer_guard_that_shows_what_the_ranks_did(run_suite):
    before = ranks_alive()
    result = run_suite(HANGING, "--strict-markers")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "E *Failed: Timeout (>100.0s) from pytest-timeout.",
            "E *---- rank ?: Python stacks ----",
            "E * in test_hangs",
            "E *---- rank ?: Python stacks ----",
            "E * in test_hangs",
        ]
    )
    assert not survivors(ranks_alive() - before)


HANGING_FOR_GOOD = """
import os, pathlib, threading
import pytest
from pytest_ddp import distributed

@distributed
def test_says_who_its_ranks_are():
    pathlib.Path(__file__).with_name(f"{os.getpid()}.pid").touch()

@pytest.mark.timeout(5, method="thread")
@distributed
def test_hangs_on_the_same_ranks():
    threading.Event().wait()
"""


@pytest.mark.long
def test_a_timeout_that_ends_the_run_ends_the_ranks(pytester):
    pytester.makepyfile(HANGING_FOR_GOOD)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*Timeout*"])
    ranks = [int(path.stem) for path in pytester.path.glob("*.pid")]
    assert len(ranks) == 2
    assert not survivors([one for one in psutil.process_iter() if one.pid in ranks])


SHARED = """
import pytest
from pytest_ddp import distributed

def barrier():
    from torch import distributed
    distributed.barrier()

def rank():
    from torch import distributed
    return distributed.get_rank()

@pytest.fixture(scope="module")
def model():
    return 1

@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("number", range(4))
@distributed
def test_one(ddp, number, model):
    barrier()
    assert number != 3 or ddp.rank == 0

class TestOthers:
    @distributed(world_size=3)
    def test_more_ranks(self, ddp):
        barrier()

    def test_plain(self, ddp_ranks, tmp_path_factory):
        assert ddp_ranks(world_size=2).run(rank) == [0, 1]
        assert (tmp_path_factory.getbasetemp().parent / "ddp-slots" / "core-0").exists()
"""


OTHER_WAYS = [pytest.param(how, marks=pytest.mark.long) for how in ("load", "loadscope", "worksteal")]


@pytest.mark.parametrize("how", ["loadgroup", *OTHER_WAYS])
def test_xdist_workers_share_the_machine(pytester, how):
    pytester.makepyfile(SHARED)
    result = pytester.runpytest_subprocess("-n", "2", f"--dist={how}", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(
        ["rank 1 of 2 (gloo, cpu) raised AssertionError: *", "FAILED *test_one[[]3[]]* - rank 1*"]
    )
    assert not list(pytester.path.rglob("ddp-slots"))


HELPED = """
from pytest_ddp import distributed

@distributed
def test_warm(ddp):
    import helper
    assert helper.of_rank(ddp.rank) == -ddp.rank

@distributed(isolation="process")
def test_apart(ddp):
    import helper
    helper.apart()

def test_called(ddp_ranks):
    def call():
        import helper
        helper.called()
    ddp_ranks(world_size=2).run(call)
"""
HELPER = """
def of_rank(rank):
    if rank == 1:
        return -1
    return 0

def apart():
    return 2

def called():
    return 3
"""


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.long)])
def test_lines_that_run_on_ranks_only_are_covered(pytester, workers):
    pytester.makepyfile(test_it=HELPED, helper=HELPER)
    result = pytester.runpytest_subprocess("-n", workers, "--cov=helper", "--cov-branch", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["helper.py * 100%"])
    result.stderr.no_fnmatch_line("*CoverageWarning*")


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "append"),
    [pytest.param([], ["--append"], id="one file"), pytest.param(["--parallel-mode"], [], id="many files")],
)
def test_lines_that_run_on_ranks_are_combined_with_those_of_coverage_run(pytester, options, append):
    pytester.makepyfile(test_it=HELPED, helper=HELPER)
    coverage = [sys.executable, "-m", "coverage"]
    ran = pytester.run(*coverage, "run", *options, "--branch", "--include=helper.py", "-m", "pytest", "--no-header")
    ran.assert_outcomes(passed=3)
    assert pytester.run(*coverage, "combine", *append).ret == 0
    pytester.run(*coverage, "report").stdout.fnmatch_lines(["helper.py * 100%"])
