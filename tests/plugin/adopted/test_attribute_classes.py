"""Classes like DeepSpeed's `DistributedTest`, with their world size in an attribute, run on ranks under `ddp_adopt`."""

import pytest

# As in DeepSpeed's tests: the harness, and the conftest file that lets it start processes.
HARNESS = """
from abc import ABC

class DistributedExec(ABC):
    world_size = 2
    init_distributed = True
    exec_timeout = 600

    def __call__(self, request):
        raise RuntimeError("starts processes")

class DistributedTest(DistributedExec):
    is_dist_test = True
"""
CONFTEST = """
import pytest

def pytest_configure(config):
    config.addinivalue_line("markers", "world_size: ranks of a test")

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if getattr(item.cls, "is_dist_test", False):
        item.cls()(item._request)
        item.runtest = lambda: True
"""


@pytest.fixture
def adopt(pytester, run_suite):
    """Run a module of such classes under the adopting line."""

    def run(source: str, *args: str) -> pytest.RunResult:
        pytester.makepyfile(harness=HARNESS)
        pytester.syspathinsert()
        lines = source.splitlines()
        indent = " " * min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        head = f"{indent}from harness import DistributedTest"
        return run_suite(f"{head}\n{source}", "--ddp-adopt=DistributedTest", *args, conftest=CONFTEST)

    return run


def test_the_class_says_the_world_size(adopt):
    result = adopt("""
        class TestDefault(DistributedTest):
            def test_it(self): assert dist.get_world_size() == 2

        class TestThree(DistributedTest):
            world_size = 3

            @pytest.mark.parametrize("number", [1, 2])
            def test_it(self, number):
                total = torch.full((1,), float(number))
                dist.all_reduce(total)
                assert total.item() == 3 * number
    """)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines("executed: 3 (2 ranks, gloo, cpu: 1; 3 ranks, gloo, cpu: 2)")


def test_several_world_sizes_run_once_each(adopt):
    result = adopt(
        """
        class TestSizes(DistributedTest):
            world_size = [1, 2, 3]

            def test_it(self): print("ran on", dist.get_world_size())
    """,
        "-v",
    )
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines_random([f"*::test_it[[]ws{size}-gloo[]] PASSED*" for size in (1, 2, 3)])


def test_a_mark_or_a_parameter_of_the_test_wins(adopt):
    result = adopt("""
        class TestOwn(DistributedTest):
            @pytest.mark.world_size(3)
            def test_mark(self): assert dist.get_world_size() == 3

            @pytest.mark.parametrize("world_size", [1, 3])
            def test_parameter(self, world_size): assert dist.get_world_size() == world_size

            @distributed(world_size=1)
            def test_decorator(self): assert dist.get_world_size() == 1
    """)
    result.assert_outcomes(passed=4)


def test_a_class_may_make_its_group_itself(adopt):
    result = adopt("""
        class TestOwn(DistributedTest):
            init_distributed = False

            def test_it(self):
                assert not dist.is_initialized()
                dist.init_process_group("gloo")
                assert dist.get_world_size() == 2
    """)
    result.assert_outcomes(passed=1)


def test_ranks_share_tmp_path_and_begin_with_one_seed(adopt):
    result = adopt(
        """
        class TestShared(DistributedTest):
            def test_folder(self, tmp_path, tmpdir):
                (tmp_path / str(dist.get_rank())).touch()
                dist.barrier()
                assert sorted(entry.name for entry in tmp_path.iterdir()) == ["0", "1"]
                assert str(tmpdir) == str(tmp_path)

            def test_seed(self):
                drawn = [torch.zeros(2) for _ in range(2)]
                dist.all_gather(drawn, torch.rand(2))
                assert torch.equal(*drawn)

            def test_leaves_what_it_likes(self): os.environ["LEFT"] = "behind"

            def test_fails(self): assert False
    """,
        "-Werror",
    )
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines("--ddp-seed=0 gives this test the seed *; every rank is seeded with *")


def test_a_backend_of_gpus_needs_gpus(adopt):
    result = adopt(
        """
        class TestGpus(DistributedTest):
            backend, world_size = "nccl", 64

            def test_it(self): ...
    """,
        "-rs",
    )
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines("SKIPPED*64 ranks on cuda need 64 GPUs*")


def test_a_backend_that_torch_lacks_is_refused(adopt):
    result = adopt("""
        class TestUnknown(DistributedTest):
            backend = "ccl"

            def test_it(self): ...
    """)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        "*TestUnknown*@distributed(backend=...) takes one of gloo, nccl, mpi, ucc, sim; got 'ccl'"
    )


def test_a_class_without_a_world_size_is_refused(adopt):
    result = adopt("""
        class TestNone(DistributedTest):
            world_size = None

            def test_it(self): ...
    """)
    result.stdout.fnmatch_lines("*TestNone cannot be adopted: it has no attribute world_size, a number of ranks or a*")
    result.assert_outcomes(errors=1)


def test_a_world_size_that_cannot_be_read_is_named(adopt):
    result = adopt("""
        import unittest

        class TestSkips(DistributedTest):
            @property
            def world_size(self):
                raise unittest.SkipTest("not here")

            def test_it(self): pass

        class TestMark(DistributedTest):
            @pytest.mark.world_size(number=3)
            def test_it(self): pass
    """)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        [
            "*TestSkips cannot be adopted: it has no attribute world_size*",
            "*the world size of TestMark cannot be read: IndexError: *",
        ]
    )
