"""Every test finds the same state on its ranks: its seeds, and nothing that another test left behind."""

import re
import sys

import pytest

WHEN = ("begun", "finished")
WORDS = ("used", "ended")
CHANGES = """
import subprocess, sys, tempfile, time, random
import numpy

def change_everything():
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_float32_matmul_precision("medium")
    torch.autograd.set_detect_anomaly(True)
    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    os.chdir(tempfile.gettempdir())
    os.environ["LEFT"] = "behind"
    dist.new_group()
    subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

def untouched():
    return (
        torch.get_default_dtype() == torch.float32
        and torch.get_default_device() == torch.device("cpu")
        and torch.get_float32_matmul_precision() == "highest"
        and not torch.is_anomaly_enabled()
        and torch.get_num_threads() == 1
        and torch.is_grad_enabled()
        and not torch.are_deterministic_algorithms_enabled()
        and os.getcwd() == {cwd!r}
        and "LEFT" not in os.environ
    )
"""
LEFT_BEHIND = (
    "*LeakWarning: test_changes left behind: default dtype changed from torch.float32 to torch.float64; "
    "default device changed from cpu to meta; float32 matmul precision changed from highest to medium; "
    "anomaly detection changed from False to True; number of threads changed from 1 to 2; "
    "grad mode changed from True to False; "
    "deterministic algorithms changed from False to True; working directory changed from *; "
    "environment changed: LEFT; 1 process group not destroyed (new_group); "
    "1 child process still running: ended; restored"
)


def test_changes_are_restored_and_reported(run_suite, pytester):
    result = run_suite(
        CHANGES.format(cwd=str(pytester.path))
        + """
pids = []

@distributed
def test_changes():
    pids.append(os.getpid())
    change_everything()

@distributed
def test_next():
    assert untouched()
    assert pids == [os.getpid()]
"""
    )
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines([LEFT_BEHIND])


def test_a_default_group_that_a_test_makes_is_reported(run_suite):
    suite = """
        @pytest.fixture(scope="module")
        def plain(): pass

        @distributed
        def test_ends_it_and_makes_another(ddp, plain):
            dist.destroy_process_group()
            dist.init_process_group(
                "gloo", init_method=f"file://{ddp.shared_path}/store", rank=ddp.rank, world_size=ddp.world_size
            )

        @distributed
        def test_ends_it(plain): dist.destroy_process_group()

        @distributed
        def test_next(): dist.barrier()
        """
    result = run_suite(suite, "--ddp-leaks=error")
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(
        ["*test_ends_it_and_makes_another left behind: 1 process group not destroyed (init_process_group); restored*"]
    )


def test_groups_left_behind_are_named_by_their_origin(run_suite):
    result = run_suite("""
        from torch.distributed.device_mesh import init_device_mesh

        @distributed(world_size=2)
        def test_mesh():
            init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))

        @distributed(world_size=2, observe=True)
        def test_groups():
            dist.new_group()
            dist.new_group(group_desc="evaluation")
        """)
    result.assert_outcomes(passed=2, warnings=2)
    result.stdout.fnmatch_lines(["*test_mesh left behind: * not destroyed (*mesh_shard); restored*"])
    result.stdout.fnmatch_lines(
        ["*test_groups left behind: 2 process groups not destroyed (evaluation, new_group); restored*"]
    )


def test_a_shared_group_that_a_test_destroyed_is_replaced(run_suite):
    suite = """
        @distributed
        @pytest.fixture(scope="module")
        def shared(): return dist.group.WORLD

        @distributed
        def test_first(shared): dist.barrier()

        @distributed
        def test_ends_it(): dist.destroy_process_group()

        @distributed
        def test_next(shared): dist.barrier(group=shared)
        """
    result = run_suite(suite)
    result.assert_outcomes(passed=3, warnings=1)
    result.stdout.fnmatch_lines(
        ["*test_ends_it left behind: a default process group destroyed that other tests share; its ranks are replaced*"]
    )


def test_fixtures_of_wider_scope_may_keep_what_they_change(run_suite):
    result = run_suite("""
        @pytest.fixture(scope="module")
        def wide():
            os.environ["WIDE"] = "yes"
            worker = threading.Thread(target=(stop := threading.Event()).wait)
            worker.start()
            yield
            stop.set()
            worker.join()
            del os.environ["WIDE"]

        @distributed
        def test_first(wide):
            assert os.environ["WIDE"] == "yes"

        @distributed
        def test_second(wide):
            assert os.environ["WIDE"] == "yes"
        """)
    result.assert_outcomes(passed=2, warnings=0)
    result.stdout.fnmatch_lines(["*2 started*"])


DRAWS = """
import random
import numpy

@pytest.fixture(scope="module")
def wide():
    return torch.rand(1).item()

def draw(ddp, name, *extra):
    torch.manual_seed  # the global generators are tested
    mine = [torch.rand(1).item(), random.random(), float(numpy.random.rand()), *extra]
    everyone = [None] * ddp.world_size
    dist.all_gather_object(everyone, mine)
    assert everyone[0] != everyone[1]
    seeds = [None] * ddp.world_size
    dist.all_gather_object(seeds, ddp.seed)
    assert len(set(seeds)) == 1
    if ddp.rank == 0:
        print("drew", name, everyone)

@distributed
def test_one(ddp, wide):
    draw(ddp, "one", wide)

@distributed
def test_two(ddp, wide):
    draw(ddp, "two", wide)

@distributed
def test_fails(ddp):
    assert False
"""


def drawn(result):
    return dict(re.findall(r"drew (\w+) (.*)", result.stdout.str()))


def test_random_numbers_are_the_same_in_every_run_and_order(run_suite):
    first = run_suite(DRAWS, "-rP")
    assert drawn(first).keys() == {"one", "two"}
    assert drawn(first)["one"] != drawn(first)["two"]
    alone = run_suite(DRAWS, "-rP", "-k", "two")
    assert drawn(alone)["two"] == drawn(first)["two"]
    other = run_suite(DRAWS, "-rP", "--ddp-seed=1")
    assert drawn(other)["one"] != drawn(first)["one"]
    first.stdout.re_match_lines(
        [r"--ddp-seed=0 gives this test the seed (\d+) \(ddp.seed\); rank r is seeded with \1 \+ r"]
    )


def test_the_seeding_of_a_fixture_holds(run_suite):
    result = run_suite("""
        import random
        import numpy

        @pytest.fixture
        def seeded(request):
            torch.manual_seed(0)
            random.seed(0)
            numpy.random.seed(0)
            request.getfixturevalue("wide")

        @pytest.fixture(scope="module")
        def wide():
            return torch.rand(1).item(), random.random(), numpy.random.rand()

        @distributed
        @pytest.mark.parametrize("number", [1, 2])
        def test_it(seeded, number):
            assert torch.rand(1).item() == torch.rand(1, generator=torch.Generator().manual_seed(0)).item()
            assert random.random() == random.Random(0).random()
            assert numpy.random.rand() == numpy.random.RandomState(0).rand()
        """)
    result.assert_outcomes(passed=2)


def test_a_forkserver_of_multiprocessing_stays(run_suite):
    result = run_suite("""
        import multiprocessing

        def nothing(): pass

        @distributed(world_size=2)
        @pytest.mark.parametrize("number", [1, 2])
        def test_it(number):
            process = multiprocessing.get_context("forkserver").Process(target=nothing)
            process.start()
            process.join()
            assert process.exitcode == 0
        """)
    result.assert_outcomes(passed=2, warnings=0)


def test_a_leak_of_an_inherited_test_names_the_place_of_the_test(run_suite, pytester):
    base = "import os\n\n\nclass Base:\n    def test_it(self):\n        os.environ['LEFT'] = '1'\n"
    pytester.makepyfile(base_of_tests=base)
    result = run_suite("""
        from base_of_tests import Base

        @distributed(world_size=1)
        class TestInherits(Base): ...
        """)
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*base_of_tests.py:5: LeakWarning: test_it left behind: environment changed: LEFT*"])


def test_ranks_that_hold_too_many_groups_finish_their_fixtures_and_are_replaced(run_suite, pytester):
    run_suite(
        """
        from pathlib import Path

        @pytest.fixture(scope="module")
        def kept():
            Path(f"begun-{os.getpid()}").touch()
            yield os.getpid()
            Path(f"finished-{os.getpid()}").touch()

        @distributed(world_size=2)
        @pytest.mark.parametrize("number", range(70))
        def test_keeps_its_group_for_ever(number, kept):
            weight = torch.nn.Parameter(torch.ones(1))
            wrapper = type("Wrapper", (), {})()
            wrapper.weight, wrapper.works = weight, [dist.all_reduce(torch.ones(1), async_op=True)]
            weight.register_post_accumulate_grad_hook(lambda _: wrapper)
            assert kept == os.getpid()
        """
    ).assert_outcomes(passed=70)
    begun, finished = ({path.name.rpartition("-")[2] for path in pytester.path.glob(f"{what}-*")} for what in WHEN)
    assert len(begun) > 2
    assert begun == finished


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_ranks_whose_groups_cannot_be_freed_finish_their_fixtures_and_are_replaced(run_suite, pytester):
    result = run_suite(
        """
        held = []

        @pytest.fixture(scope="module")
        def process():
            yield os.getpid()
            open(f"ended-{os.getpid()}", "w").close()

        @pytest.mark.parametrize("number", range(50))
        @distributed(world_size=2)
        def test_holds(number, process):
            held.append(dist.all_reduce(torch.ones(1), async_op=True))
            held[-1].wait()
            open(f"used-{process}", "w").close()
        """
    )
    result.assert_outcomes(passed=50)
    used, ended = ({path.name.partition("-")[2] for path in pytester.path.glob(f"{word}-*")} for word in WORDS)
    assert len(used) == 4
    assert ended == used
