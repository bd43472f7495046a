"""pytest-rerunfailures beside ours: what fails on ranks runs again, where its filters say so."""

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

@pytest.mark.flaky(reruns=1, only_rerun="AssertionError")
@distributed
def test_local_kind():
    class LocalError(Exception):
        pass

    fails_once("local", LocalError("odd"))

@pytest.mark.flaky(reruns=1, only_rerun="RankFailure: rank 0 of 2 exited")
@distributed
def test_lost(ddp):
    if ddp.rank == 0 and not os.path.exists("lost"):
        open("lost", "w").close()
        os._exit(3)
"""


def test_rerunfailures_looks_at_what_was_raised_on_a_rank(run_suite):
    options = ("-p", "rerunfailures", "-p", "no:xdist", "--strict-markers", "-rfR")
    result = run_suite(FILTERED, *options, "--reruns=1", "--only-rerun=ValueError: odd")
    result.assert_outcomes(passed=4, failed=3)
    reran = {line.partition("::")[2].split()[0] for line in result.outlines if line.startswith("RERUN ")}
    assert reran == {"test_value", "test_file", "test_cause", "test_lost"}
