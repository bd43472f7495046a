"""Tests of unittest on ranks: tearDown and cleanups wait until every rank has finished the test."""


def test_no_rank_removes_what_another_one_still_uses(run_suite):
    result = run_suite(
        """
        import time, unittest
        from pathlib import Path

        @distributed
        class TestShared(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def folder(self, ddp): self.ddp = ddp

            def setUp(self):
                self.file = self.ddp.shared_path / "file"
                self.file.touch()
                self.order = []
                self.addCleanup(self.check)
                self.addCleanup(self.order.append, "cleanup")

            def tearDown(self):
                self.order.append("tearDown")
                self.file.unlink(missing_ok=True)

            def check(self):
                assert self.order == ["tearDown", "cleanup"]
                assert not self.file.exists()
                print("checked by rank", dist.get_rank())

            def test_file(self):
                dist.barrier()
                if self.ddp.rank == 1:
                    time.sleep(0.3)
                self.assertTrue(self.file.exists())
    """,
        "-rP",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines_random(["checked by rank 0", "checked by rank 1"])


def test_tear_down_does_not_run_if_set_up_has_failed(run_suite):
    result = run_suite("""
        import unittest

        @distributed
        class TestSetup(unittest.TestCase):
            def setUp(self):
                self.addCleanup(print, "cleaned up")
                raise ValueError

            def tearDown(self): print("torn down")
            def test_it(self): ...
    """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("cleaned up")
    result.stdout.no_fnmatch_line("torn down")


def test_what_fails_in_tear_down_is_an_error_of_teardown(run_suite):
    result = run_suite("""
        import unittest

        @distributed
        class TestTearDown(unittest.TestCase):
            def tearDown(self):
                if dist.get_rank() == 1:
                    raise ValueError("in tearDown")

            def test_it(self): ...
    """)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines("rank 1 of 2 (gloo, cpu) raised ValueError: in tearDown")


def test_each_example_of_hypothesis_has_its_own_set_up_and_tear_down(run_given):
    result = run_given("""
        import unittest

        calls = []

        @distributed
        class TestExamples(unittest.TestCase):
            def setUp(self): calls.append("setUp")
            def tearDown(self): calls.append("tearDown")

            @settings(fast, max_examples=3)
            @given(st.integers())
            def test_given(self, number): calls.append("test")

            def test_order(self):
                calls.pop()
                assert calls == ["setUp", "test", "tearDown"] * (len(calls) // 3)
                assert len(calls) > 3
    """)
    result.assert_outcomes(passed=2)


def test_an_asynchronous_test_case_tears_down_in_its_loop(run_suite):
    result = run_suite(
        """
        import asyncio, unittest

        @distributed
        class TestAsync(unittest.IsolatedAsyncioTestCase):
            async def asyncTearDown(self):
                asyncio.get_running_loop()
                print("first")

            def tearDown(self):
                asyncio.get_event_loop()
                print("then")

            async def test_it(self): ...
    """,
        "-rP",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["first", "then"])
