"""Classes that were written for torch's harnesses run on warm ranks, unchanged, by the line `ddp_adopt = ...`."""

import pytest
import torch
import torch.testing._internal.common_distributed as harnesses  # pytester forgets what an inner run imports

HEAD = """
import os, sys, tempfile, unittest
from torch.testing._internal.common_distributed import (
    DistributedTestBase, MultiProcContinuousTest, MultiProcessTestCase, MultiThreadedTestCase, TEST_SKIPS,
    requires_world_size, skip_if_lt_x_gpu, skip_if_small_worldsize,
)
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize

class Case(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

def total():
    ones = torch.ones(1)
    dist.all_reduce(ones)
    return ones.item()
"""
# Versions of torch word these differently.
NO_GPUS = next(skip.message for skip in harnesses.TEST_SKIPS.values() if skip.exit_code == 80)
NO_WORLD = harnesses.requires_world_size(7)(lambda: None).__unittest_skip_why__
NAMES = "MultiProcessTestCase, MultiThreadedTestCase MultiProcContinuousTest"


@pytest.fixture
def adopt(run_suite):
    """Run a module of such classes under the adopting line."""

    def run(source: str, *args: str) -> pytest.RunResult:
        lines = source.splitlines()
        indent = " " * min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        head = "\n".join(indent + line for line in HEAD.splitlines())
        return run_suite(f"{head}\n{source}", f"--ddp-adopt={NAMES}", *args)

    return run


def test_a_multi_process_test_case_makes_its_group_with_the_file_that_it_was_given(adopt):
    result = adopt("""
        class TestFile(Case):
            def init(self):
                store = dist.FileStore(self.file_name, self.world_size)
                dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)

            def test_one(self):
                assert not dist.is_initialized()
                self.init()
                self.assertEqual(total(), 2)
                self.assertEqual(dist.get_rank(), self.rank)
                self.assertEqual(str(self.rank), os.environ["RANK"])

            test_another = test_one

            def test_file_url(self):
                url = f"file://{self.file_name}"
                dist.init_process_group("gloo", init_method=url, rank=self.rank, world_size=self.world_size)
                self.assertEqual(total(), 2)
                dist.destroy_process_group()
    """)
    result.assert_outcomes(passed=3)  # groups that a test leaves are destroyed without a warning
    result.stdout.fnmatch_lines("executed: 3 (2 ranks, gloo, cpu, no group: 3)")


def test_set_up_and_tear_down_run_on_ranks_which_share_what_set_up_of_rank_0_has_made(adopt):
    result = adopt(
        """
        class TestFolder(Case):
            def setUp(self):
                MultiProcessTestCase.setUp(self)
                self.folder = tempfile.TemporaryDirectory()
                os.environ["FOLDER"] = self.folder.name
                self._spawn_processes()

            def tearDown(self):
                super().tearDown()
                self.folder.cleanup()
                print("torn down by", os.environ["RANK"])

            def test_folder(self):
                store = dist.FileStore(self.file_name, 2)
                open(f"{os.environ['FOLDER']}/{self.rank}", "w").close()
                store.set(str(self.rank), "")
                store.wait(["0", "1"])
                self.assertEqual(sorted(os.listdir(os.environ["FOLDER"])), ["0", "1"])
                if self.rank:
                    import time
                    time.sleep(0.3)
                    self.assertTrue(os.path.exists(os.environ["FOLDER"]))
                print("folder of", self.rank)

        class TestLater(Case):
            def test_environment(self): self.assertNotIn("FOLDER", os.environ)
    """,
        "-rP",
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*folder of 0*", "*torn down by 0*"])
    result.stdout.fnmatch_lines(["*folder of 1*", "*torn down by 1*"])


def test_skips_keep_their_reasons(adopt):
    result = adopt(
        """
        os.environ["BACKEND"] = "gloo"

        class TestSkips(Case):
            @skip_if_lt_x_gpu(3)
            def test_gpus(self): assert False

            @skip_if_small_worldsize
            def test_world(self): assert False

            def test_reason(self): raise unittest.SkipTest("not on Saturdays")

            def test_code(self): sys.exit(TEST_SKIPS["no_peer_access"].exit_code)

            @unittest.skip("never")
            def test_decorated(self): assert False

            @requires_world_size(7)
            def test_needs(self): assert False
    """,
        "-rs",
    )
    result.assert_outcomes(skipped=6)
    reasons = [NO_GPUS, "Skipped due to small world size.", "not on Saturdays"]
    reasons += ["Test skipped because no GPU peer access", "never", NO_WORLD]
    for reason in reasons:
        result.stdout.fnmatch_lines(f"SKIPPED*{reason}*")


def test_a_plain_distributed_test_may_use_the_decorators_of_torch(adopt):
    result = adopt(
        """
        class TestPlain:
            @distributed
            @skip_if_lt_x_gpu(3)
            def test_gpus(self): assert False

        @distributed
        def test_other_code(): sys.exit(3)
    """,
        "-rs",
    )
    result.assert_outcomes(skipped=1, failed=1)
    result.stdout.fnmatch_lines(f"SKIPPED*{NO_GPUS}")
    result.stdout.fnmatch_lines("*raised SystemExit: 3")


def test_parametrized_tests_and_subtests_run(adopt):
    result = adopt(
        """
        @instantiate_parametrized_tests
        class TestMany(Case):
            @parametrize("number", [1, 2])
            def test_number(self, number):
                for sign in (1, -1):
                    with self.subTest(sign=sign):
                        self.assertGreater(sign * number + 3 * self.rank, -2)
    """,
        "-v",
    )
    result.stdout.fnmatch_lines_random(["*test_number_number_1 PASSED*", "*test_number_number_2 FAILED*"])
    result.stdout.fnmatch_lines("rank 0 of 2 * raised AssertionError*")


def test_a_failure_is_reported_at_its_line_and_the_next_test_is_unharmed(adopt):
    result = adopt("""
        class TestFails(Case):
            def test_fails(self):
                if self.rank == 1:
                    raise ValueError("on one rank")

            def test_passes(self): pass
    """)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        ["rank 1 of 2 * raised ValueError: on one rank", "  rank 0: passed", '>*raise ValueError("on one rank")']
    )


def test_a_hang_is_found(adopt):
    result = adopt("""
        class TestHangs(Case):
            def test_hangs(self):
                dist.init_process_group("gloo")
                if self.rank == 1:
                    dist.barrier()
    """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("rank 1 of 2 * deadlocked: it waits in barrier #1, which rank 0 never entered*")


def test_exit_codes_are_checked_as_the_harness_does(adopt):
    result = adopt("""
        class TestCodes(Case):
            def setUp(self):
                super().setUp()
                name = self.id().rpartition(".")[2]
                expected = {"test_expected": 5, "test_killed": -6, "test_none": 5}
                if name in expected:
                    self.special_return_code_checks = {getattr(self, name).__wrapped__: expected[name]}
                if name == "test_any":
                    self.skip_return_code_checks = [self.test_any.__wrapped__]

            def test_zero(self): sys.exit(0)
            def test_expected(self): sys.exit(5)
            def test_any(self): sys.exit(6)
            def test_other(self): sys.exit(7)
            def test_none(self): pass
            def test_killed(self): os.abort()
    """)
    result.assert_outcomes(passed=3, failed=3)
    result.stdout.fnmatch_lines_random(
        [
            "*the test ended its process with exit code 7; it expects 0*",
            "*the test ended its process with exit code 0; it expects 5*",
            "*this test cannot be adopted: it expects that signal 6 ends its processes*",
        ]
    )


def test_distributed_test_base_makes_a_group_for_a_device(adopt):
    result = adopt("""
        class TestBase(DistributedTestBase):
            world_size = 3

            def test_group(self):
                self.create_pg("cpu")
                self.assertEqual(total(), 3)
    """)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines("executed: 1 (3 ranks, gloo, cpu, no group: 1)")


def test_a_class_may_run_its_processes_in_its_own_way(adopt):
    result = adopt("""
        class TestOwnRun(Case):
            @classmethod
            def _run(cls, rank, test_name, file_name, pipe, **kwargs):
                self = cls(test_name)
                self.rank, self.file_name = rank, file_name
                dist.init_process_group("gloo", init_method=f"file://{file_name}", rank=rank, world_size=2)
                self.run_test(test_name, pipe)
                dist.destroy_process_group()
                sys.exit(0)

            def test_group(self): self.assertEqual(total(), 2)
    """)
    result.assert_outcomes(passed=1)


def test_a_continuous_test_has_a_fresh_group_each_time(adopt):
    result = adopt(
        """
        groups = []

        class TestContinuous(MultiProcContinuousTest):
            world_size = 2

            @classmethod
            def backend_str(cls): return "gloo"

            @classmethod
            def device_type(cls): return "cpu"

            def test_one(self):
                self.assertEqual(total(), self.world_size)
                self.assertEqual(dist.get_rank(), self.rank)
                self.assertNotIn(id(self.pg), groups)
                groups.append(id(self.pg))

            test_two = test_one

            @skip_if_lt_x_gpu(3)
            def test_gpus(self): assert False

            def test_fails(self): assert self.rank == 0

            def test_zzz_not_poisoned(self): self.assertEqual(total(), 2)
    """,
        "-rs",
    )
    result.assert_outcomes(passed=3, skipped=1, failed=1)
    result.stdout.fnmatch_lines("rank 1 of 2 * raised AssertionError*")
    result.stdout.fnmatch_lines(f"SKIPPED*{NO_GPUS}")


def test_a_continuous_class_on_devices_that_are_not_there_is_skipped(adopt):
    result = adopt(
        """
        class TestDevices(MultiProcContinuousTest):
            @classmethod
            def device_type(cls): return "cuda"

            def test_one(self): assert torch.cuda.is_available()

        class TestNone(Case):
            world_size = torch.cuda.device_count()

            def test_one(self): assert torch.cuda.is_available()
    """,
        "-rs",
    )
    if not torch.cuda.is_available():
        result.assert_outcomes(skipped=2)
        result.stdout.fnmatch_lines_random(
            [f"SKIPPED*world_size of Test{name} is 0 on this machine*" for name in ("Devices", "None")]
        )


def test_threads_become_ranks(adopt):
    result = adopt("""
        class TestThreads(MultiThreadedTestCase):
            world_size = 3

            def setUp(self):
                super().setUp()
                self._spawn_threads()

            def perThreadSetUp(self): self.ready = True

            def test_all_reduce(self):
                self.assertTrue(self.ready)
                self.assertEqual(total(), 3)
                self.assertEqualOnRank(dist.get_rank(), self.rank, rank=2)

            def test_fails(self): self.assertNotEqual(self.rank, 2)
    """)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines("rank 2 of 3 * raised AssertionError*")


def test_a_class_that_starts_its_processes_itself_is_refused(adopt):
    result = adopt("""
        class TestOwnStart(Case):
            def _start_processes(self, proc): ...
            def test_it(self): ...
    """)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        "*TestOwnStart cannot be adopted: it overrides _start_processes of MultiProcessTestCase, which*"
    )


def test_a_class_in_which_one_process_plays_all_ranks_stays_there(adopt):
    result = adopt("""
        class TestLocal(Case):
            def join_or_run(self, method): return method
            def _spawn_processes(self): ...
            def test_it(self): self.assertNotIn("RANK", os.environ)
    """)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*executed: *")


def test_other_classes_run_where_they_did(run_suite):
    source = HEAD + "class TestOne(Case):\n    def test_it(self): ...\n"
    result = run_suite(source, "--ddp-adopt=MultiProcContinuousTest", "--collect-only", "-m", "distributed")
    result.stdout.fnmatch_lines("*1 deselected*")


@pytest.mark.long
def test_torchs_own_tests_run_from_the_installed_package(pytester):
    pytester.makeini("[pytest]\nddp_adopt = MultiProcessTestCase")
    pytester.makepyfile("""
        import os
        os.environ.update(BACKEND="gloo", WORLD_SIZE="2")
        from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

        class TestWithSpawn(TestDistBackend, DistributedTest._DistTestBase):
            def setUp(self):
                super().setUp()
                self._spawn_processes()
    """)
    result = pytester.runpytest_subprocess("-k", "get_rank or reduce_max or dump_DDP or SyncBatchNorm_half", "-Wignore")
    result.assert_outcomes(passed=6, skipped=1)  # of others, each version of torch has another number


def test_a_world_size_that_cannot_be_read_concerns_its_own_test_alone(adopt):
    result = adopt("""
        class TestBefore(Case):
            def test_it(self): pass

        class TestSkips(Case):
            @property
            def world_size(self): raise unittest.SkipTest("not here")

            def test_it(self): pass

        class TestBreaks(TestSkips):
            @property
            def world_size(self): raise RuntimeError("no idea")
    """)
    result.assert_outcomes(passed=1, skipped=1, errors=1)
    result.stdout.fnmatch_lines(["the world size of TestBreaks cannot be read: RuntimeError: no idea"])
