"""Plugins beside ours: what each of them promises holds for tests on ranks too."""

import re
from textwrap import dedent

import psutil
import pytest

from pytest_ddp.launcher import shared_launcher

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


FLAKY = """
import pathlib

def first_time(name):
    file = pathlib.Path(__file__).with_name(f"{name}-{os.environ.get('RANK', 'controller')}")
    if file.exists():
        return False
    file.touch()
    return True

@distributed
def test_fails_on_one_rank(ddp):
    assert not first_time("fails") or ddp.rank == 0

@distributed
def test_loses_a_rank(ddp):
    if first_time("lost") and ddp.rank == 1:
        os._exit(3)
    dist.barrier()

@pytest.fixture
def model():
    return "made" if first_time("model") else "made again"

@pytest.mark.flaky(reruns=2)
@distributed
def test_marked(ddp, model):
    assert model == "made again"

def test_plain(ddp_ranks):
    ddp_ranks(world_size=2).run(lambda: 1 // (not first_time("plain")))

@distributed
def test_always_fails(ddp):
    assert ddp.rank == 0
"""


def test_rerunfailures_runs_again_also_after_a_lost_rank(run_suite):
    result = run_suite(FLAKY, "-p", "rerunfailures", "-p", "no:xdist", "--reruns=1", "--strict-markers")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["*1 failed, 4 passed, 5 rerun*"])


FILTERED = """
class NetworkError(Exception): pass

def fails_once(name, error, cause=None):
    if "RANK" not in os.environ or os.environ["RANK"] == "0":
        if not os.path.exists(name):
            open(name, "w").close()
            try:
                if cause:
                    raise cause
            except Exception as earlier:
                raise error from earlier
            raise error

@distributed
def test_value():
    fails_once("value", ValueError("odd"))

@distributed
def test_key():
    fails_once("key", KeyError("odd"))

@pytest.mark.flaky(reruns=1, only_rerun=OSError)
@distributed
def test_file():
    fails_once("file", FileNotFoundError("odd"))

@pytest.mark.flaky(reruns=1, only_rerun=NetworkError)
@distributed
def test_cause():
    fails_once("cause", ValueError("odd"), NetworkError("down"))

@pytest.mark.flaky(reruns=1, only_rerun="OSError")
@distributed
def test_another_kind():
    fails_once("another", ValueError("odd"))

@pytest.mark.flaky(reruns=1, only_rerun="RankFailure: rank 0 of 2 left")
@distributed
def test_lost(ddp):
    if ddp.rank == 0 and not os.path.exists("lost"):
        open("lost", "w").close()
        os._exit(3)
"""


def test_rerunfailures_looks_at_what_was_raised_on_a_rank(run_suite):
    options = ("-p", "rerunfailures", "-p", "no:xdist", "--strict-markers", "-rfR")
    result = run_suite(FILTERED, *options, "--reruns=1", "--only-rerun=ValueError: odd")
    result.assert_outcomes(passed=4, failed=2)
    reran = {line.partition("::")[2].split()[0] for line in result.outlines if line.startswith("RERUN ")}
    assert reran == {"test_value", "test_file", "test_cause", "test_lost"}


ASYNCHRONOUS = """
import asyncio

async def total(value):
    await asyncio.sleep(0)
    tensor = torch.tensor(value)
    dist.all_reduce(tensor)
    return tensor.item()

@distributed
async def test_unmarked(ddp):
    assert await total(1) == 2

@pytest.mark.asyncio
@distributed
async def test_marked(ddp):
    assert await total(ddp.rank) == 1

@pytest.mark.asyncio
@distributed
async def test_fails(ddp):
    assert await total(ddp.rank) == 0
"""
WITH_ASYNCIO = ("-p", "asyncio", "-o", "asyncio_default_fixture_loop_scope=function")


def test_asyncio_in_auto_mode_runs_every_coroutine(run_suite):
    result = run_suite(ASYNCHRONOUS, *WITH_ASYNCIO, "--asyncio-mode=auto")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["E *assert 1 == 0"])


def test_asyncio_in_strict_mode_runs_marked_coroutines_and_others_fail(run_suite):
    result = run_suite(ASYNCHRONOUS, *WITH_ASYNCIO, "--asyncio-mode=strict")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["rank ? of 2 (gloo, cpu) raised Failed: async def functions are not natively *"])


def test_asyncio_runs_coroutines_that_hypothesis_gives_arguments(run_suite):
    suite = """
        from hypothesis import given, settings, strategies as st

        @pytest.mark.asyncio
        @distributed
        @settings(max_examples=5, database=None, derandomize=True)
        @given(value=st.integers())
        async def test_passes(ddp, value):
            await asyncio.sleep(0)

        @pytest.mark.asyncio
        @distributed
        @settings(database=None, derandomize=True)
        @given(value=st.integers())
        async def test_fails(ddp, value):
            await asyncio.sleep(0)
            assert value < 100

        @distributed
        @settings(database=None, derandomize=True)
        @given(value=st.integers())
        async def test_unmarked(ddp, value): pass
        """
    result = run_suite("import asyncio\n" + dedent(suite), *WITH_ASYNCIO, "--asyncio-mode=strict")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        ["E *assert 100 < 100", "*Failed: async def functions are not natively supported: install a plugin *"]
    )


HANGING = """
@distributed
def test_warms_up(ddp):
    dist.barrier()

@pytest.mark.timeout(2, method="signal")
@distributed
def test_hangs(ddp):
    if ddp.rank == 1:
        threading.Event().wait()
    dist.barrier()

@pytest.mark.timeout(2, method="signal")
def test_hangs_too(ddp_ranks):
    ddp_ranks(world_size=2).run(lambda: threading.Event().wait())

@distributed
def test_next(ddp):
    dist.barrier()
"""


def ranks_alive() -> set[psutil.Process]:
    """Return the ranks of this process's fork server, which other tests use too."""
    server = shared_launcher()._server
    return set(psutil.Process(server.pid).children()) if server else set()


def test_timeout_is_an_outer_guard_that_shows_what_the_ranks_did(run_suite):
    before = ranks_alive()
    result = run_suite(HANGING, "--strict-markers")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "E *Failed: Timeout (>2.0s) from pytest-timeout.",
            "E *---- rank ?: Python stacks ----",
            "E * in test_hangs",
            "E *---- rank ?: Python stacks ----",
            "E * in test_hangs",
        ]
    )
    _, alive = psutil.wait_procs(ranks_alive() - before, timeout=30)
    assert not alive


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
    assert not list(pytester.path.parent.rglob("ddp-slots"))


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
