"""`@distributed` on fixtures, and the lifetime of fixtures on ranks."""

LOG = """
from pathlib import Path

def log(*words):
    with (Path({folder!r}) / f"rank{{dist.get_rank() if dist.is_initialized() else '?'}}").open("a") as file:
        print(*words, file=file)
"""


def logged(folder):
    return {path.name: path.read_text().splitlines() for path in sorted(folder.glob("rank*"))}


def test_a_fixture_of_wider_scope_keeps_its_group(run_suite, tmp_path):
    result = run_suite(
        LOG.format(folder=str(tmp_path))
        + """
@distributed(world_size=2)
@pytest.fixture(scope="module")
def model(ddp):
    log("up", ddp.world_size)
    yield torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    log("down")

def step(model):
    model(torch.ones(1, 2)).sum().backward()
    assert model.process_group is dist.group.WORLD

@distributed
def test_first(model, ddp):
    step(model)

def test_plain(): pass

@distributed
def test_without_the_fixture(ddp):
    dist.barrier()

@distributed
def test_last(model):
    step(model)
"""
    )
    result.assert_outcomes(passed=4)
    assert logged(tmp_path) == {"rank0": ["up 2", "down"], "rank1": ["up 2", "down"]}


def test_session_fixtures_live_across_modules_and_end_when_a_rank_is_lost(run_suite, pytester, tmp_path):
    pytester.makepyfile(
        test_another="""
        from pytest_ddp import distributed

        @distributed
        def test_there(dataset, ddp):
            assert dataset == [ddp.rank]

        @distributed(world_size=1)
        def test_other_world(dataset, ddp):
            assert dataset == [0]

        @distributed
        def test_lost(ddp):
            import os
            if ddp.rank == 1:
                os._exit(3)

        @distributed
        def test_afterwards(dataset, ddp):
            import torch.distributed as dist
            dist.barrier()
            assert dataset == [ddp.rank]
        """
    )
    conftest = (
        "import pytest\nimport torch.distributed as dist\nfrom pytest_ddp import distributed\n"
        + LOG.format(folder=str(tmp_path))
        + """
@distributed
@pytest.fixture(scope="session")
def dataset(ddp):
    dist.barrier()
    log("up", ddp.world_size)
    yield [ddp.rank]
    log("down")
"""
    )
    result = run_suite("@distributed\ndef test_here(dataset): pass", conftest=conftest)
    result.assert_outcomes(passed=4, failed=1)
    assert logged(tmp_path) == {
        "rank0": ["up 2", "down", "up 1", "down", "up 2", "down"],
        "rank1": ["up 2", "down", "up 2", "down"],
    }


def test_a_fixture_is_finalised_after_a_failure_and_set_up_again(run_suite, tmp_path):
    result = run_suite(
        LOG.format(folder=str(tmp_path))
        + """
@distributed
@pytest.fixture(scope="module")
def model(ddp):
    log("up")
    yield torch.ones(2)
    log("down")
    if ddp.rank == 0:
        raise ValueError("on the way out")

@distributed
def test_fails_where_the_others_wait(model, ddp):
    if ddp.rank == 0:
        raise KeyError("mine")
    dist.all_reduce(model)

@distributed
def test_next(model):
    dist.all_reduce(model)
    assert model[0] == 2
"""
    )
    result.assert_outcomes(passed=1, failed=1, errors=2)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_fails_where_the_others_wait*"])
    assert logged(tmp_path)["rank0"] == ["up", "down"] * 2


def test_options_of_a_fixture_are_defaults_of_its_tests_and_must_agree_with_them(run_suite):
    result = run_suite(
        """
        @distributed(world_size=3)
        @pytest.fixture
        def three(ddp):
            return ddp.world_size

        @distributed(world_size=[1, 2])
        @pytest.fixture
        def sizes(ddp):
            return ddp.world_size

        @distributed
        def test_default(three):
            assert three == 3

        @distributed(world_size=2)
        def test_conflict(three): pass

        @distributed
        def test_sizes(sizes, ddp):
            assert sizes == ddp.world_size

        @distributed
        @pytest.fixture
        def lone(): pass

        def test_plain(lone): pass
        """,
        "-v",
    )
    result.assert_outcomes(passed=3, errors=2)
    result.stdout.fnmatch_lines(["*test_sizes[[]ws1-gloo[]] PASSED*", "*test_sizes[[]ws2-gloo[]] PASSED*"])
    result.stdout.fnmatch_lines(
        [
            "*the fixture 'three' needs 3 ranks, but the test asks for 2: write the same world size in both, or *",
            "*the fixture 'lone' is @distributed, it lives on ranks: only a @distributed test can use it, and*",
        ]
    )


def test_a_plain_test_cannot_use_a_fixture_that_lives_on_ranks(run_suite):
    result = run_suite("""
        @distributed
        @pytest.fixture(scope="module")
        def model(ddp): yield ddp.rank

        def test_first(model): pass

        def test_second(model): pass

        @distributed
        @pytest.fixture(scope="module")
        def plain_model(): pass

        def test_while_it_runs(request): request.getfixturevalue("plain_model")

        def test_once_more(request): request.getfixturevalue("plain_model")

        def test_fine(): pass

        @distributed
        def test_on_ranks(model, ddp): assert model == ddp.rank
        """)
    result.assert_outcomes(passed=2, failed=2, errors=2)
    refusals = [line for line in result.outlines if line.startswith("the fixture ")]
    assert [line.rpartition(", and ")[2] for line in refusals] == [
        "test_first is not one",
        "test_second is not one",
        "this test is not one",
        "this test is not one",
    ]


def test_tmp_path_belongs_to_a_rank_and_shared_path_to_the_test(run_suite):
    result = run_suite("""
        seen = []

        @pytest.mark.parametrize("number", [0, 1])
        @distributed
        def test_it(ddp, tmp_path, number):
            assert not list(tmp_path.iterdir())
            (tmp_path / "mine").touch()
            (ddp.shared_path / f"from{ddp.rank}").touch()
            dist.barrier()
            assert sorted(path.name for path in ddp.shared_path.iterdir()) == ["from0", "from1"]
            paths = [None, None]
            dist.all_gather_object(paths, (tmp_path, ddp.shared_path))
            assert paths[0][0] != paths[1][0]
            assert paths[0][1] == paths[1][1]
            seen.append(ddp.shared_path)
            assert len(set(seen)) == len(seen) == number + 1
        """)
    result.assert_outcomes(passed=2)


def test_the_value_of_an_option_comes_from_the_nearest_place(run_suite):
    result = run_suite("""
        pytestmark = distributed(world_size=3, timeout=50)

        @distributed(timeout=40, isolation="process")
        class TestClass:
            pids = []

            @distributed(world_size=1)
            @distributed(world_size=2)
            def test_nearest(self, ddp):
                assert ddp.world_size == 2
                self.pids.append(os.getpid())

            def test_own_process(self, ddp):
                assert ddp.world_size == 3
                assert not self.pids
        """)
    result.assert_outcomes(passed=2)


def test_the_traceback_of_a_failing_fixture_shows_none_of_our_frames(run_suite):
    result = run_suite(
        """
        @distributed(world_size=2)
        def test_setup(at_once): ...

        @distributed(world_size=2)
        def test_teardown(at_the_end): ...

        @distributed(world_size=2)
        def test_lasting(lasting): ...

        def test_plain(at_once): ...
        """,
        conftest="""
import pytest
from pytest_ddp import distributed

@pytest.fixture
def at_once():
    raise ValueError("at once")

@pytest.fixture
def at_the_end():
    yield
    raise ValueError("at the end")

@distributed
@pytest.fixture(scope="module")
def lasting():
    raise ValueError("lasting")
""",
    )
    result.assert_outcomes(passed=1, errors=4)  # the test of the teardown has passed by then
    assert result.stdout.str().count("conftest.py:6: ValueError") == 2
    result.stdout.no_fnmatch_line("*pytest_ddp*.py*")
