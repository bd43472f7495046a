"""unittest.TestCase on ranks, and where unittest itself runs them."""

import subprocess
import sys


def test_ranks_tear_a_test_case_down_when_all_have_finished_their_calls(run_suite):
    result = run_suite(
        """
        import time, unittest

        @distributed(world_size=2)
        class TestShared(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def _ddp(self, ddp):
                self.ddp, self.file = ddp, ddp.shared_path / "shared"

            def setUp(self):
                self.addCleanup(print, "cleaned up")
                if self.ddp.rank == 0:
                    self.file.write_text("here")
                dist.barrier()

            def tearDown(self):
                print("torn down")
                if self.ddp.rank == 0:
                    self.file.unlink()
                    raise OSError("from tearDown")

            def test_reads(self):
                dist.barrier()
                if self.ddp.rank == 1:
                    time.sleep(0.2)  # rank 0 has finished its call
                assert self.file.read_text() == "here"
        """,
        "-rP",
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["rank 0 of 2 (gloo, cpu) raised OSError: from tearDown"])
    result.stdout.re_match_lines_random(["torn down", "cleaned up"])


def test_unittest_says_that_only_pytest_runs_a_distributed_class(pytester):
    file = pytester.makepyfile("""
        import unittest
        from pytest_ddp import distributed

        @distributed(world_size=2)
        class TestSizes(unittest.TestCase):
            def test_size(self): pass

        class TestInherits(TestSizes):
            def setUp(self): pass
        """)
    command = [sys.executable, "-m", "unittest", file.name]
    run = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    for name in ("TestSizes", "TestInherits"):
        sentence = f"{name} is @distributed: only pytest runs it on ranks; run `pytest -k {name}` instead of unittest"
        assert f"pytest_ddp.errors.UsageError: {sentence}" in run.stderr
    assert "FAILED (errors=2)" in run.stderr


def test_an_older_pytest_is_refused_in_a_sentence(tmp_path):
    program = "import pytest; pytest.version_tuple = (8, 4, 2); pytest.__version__ = '8.4.2'; pytest.main()"
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    needs = "pytest-ddp needs pytest 9.1 or newer, but pytest 8.4.2 is installed: pip install 'pytest>=9.1'"
    assert f"ERROR: {needs}" in run.stderr
