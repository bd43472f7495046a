"""A rank that is lost between two tests takes the fixtures of the others along: all have the same alive."""

import pytest

LOST_BETWEEN_TESTS = """
import psutil
from pathlib import Path
from pytest_ddp import RankFailure

folder = Path({folder!r})

def log(rank, *words):
    with (folder / f"rank{{rank}}").open("a") as file:
        print(*words, file=file)

{kind}
@pytest.fixture(scope="module")
def dataset(ddp):
    log(ddp.rank, "up")
    (folder / f"pid{{ddp.rank}}").write_text(str(os.getpid()))
    if ddp.rank == 1 and (folder / "broken").exists():
        raise ValueError("broken")
    yield
    log(ddp.rank, "down")

@distributed(world_size=2)
def test_before(dataset): pass

def leave():
    if dist.get_rank() == 1:
        os._exit(3)

def test_leaves(ddp_ranks):
    with pytest.raises(RankFailure, match="exited with code 3"):
        ddp_ranks(world_size=2).run(leave)

def test_makes_way(ddp_ranks):
    ddp_ranks(world_size=2).run(int)

def test_kills():
    process = psutil.Process(int((folder / "pid1").read_text()))
    process.kill()
    process.wait(60)

def test_breaks():
    (folder / "broken").touch()

@distributed(world_size=2)
def test_after(dataset, ddp):
    log(ddp.rank, "used")
    dist.barrier()
"""


def logged(folder, rank):
    return (folder / f"rank{rank}").read_text().splitlines()


@pytest.mark.parametrize(("kind", "between"), [("", "leaves"), ("", "kills"), ("@distributed", "kills")])
def test_a_rank_that_is_lost_between_two_tests_takes_the_fixtures_of_all_along(run_suite, tmp_path, kind, between):
    result = run_suite(
        LOST_BETWEEN_TESTS.format(folder=str(tmp_path), kind=kind), "-k", f"before or {between} or after"
    )
    result.assert_outcomes(passed=3, deselected=3)
    assert logged(tmp_path, rank=1) == ["up", "up", "used", "down"]
    seen = logged(tmp_path, rank=0)
    if (kind, between) == ("", "kills") and seen.count("down") == 1:  # it waited for rank 1 in a next group
        seen.insert(1, "down")
    assert seen == ["up", "down", "up", "used", "down"]


@pytest.mark.parametrize(("kind", "between"), [("", "leaves"), ("@distributed", "makes_way")])
def test_a_fixture_that_is_made_anew_is_waited_for_on_all_ranks(run_suite, tmp_path, kind, between):
    """A rank enters the call when all ranks are set up, also those that make a fixture again."""
    source = LOST_BETWEEN_TESTS.format(folder=str(tmp_path), kind=kind)
    result = run_suite(source, "-k", f"before or {between} or breaks or after")
    result.assert_outcomes(passed=3, errors=1, deselected=2)
    assert "used" not in logged(tmp_path, rank=0)
