"""What a test raises, says and skips on its ranks is reported as it would be in one process."""

import pytest


def test_skipping_and_failing_as_expected(run_suite):
    result = run_suite(
        """
        import warnings

        @pytest.mark.skipif(True, reason="by condition")
        @distributed
        def test_skipif(): raise AssertionError

        @pytest.mark.xfail(run=False, reason="not to be run")
        @distributed
        def test_norun(): os._exit(1)

        @distributed
        def test_importorskip(): pytest.importorskip("no_such_module")

        @pytest.mark.xfail(raises=ValueError, strict=True, reason="one rank is enough")
        @distributed
        def test_one_fails_as_expected(ddp):
            if ddp.rank == 0:
                raise ValueError

        @pytest.mark.xfail(raises=ValueError, reason="but a TypeError is not")
        @distributed
        def test_one_fails_in_another_way(ddp):
            raise ValueError if ddp.rank == 0 else TypeError("this one")

        @pytest.mark.xfail(strict=True, reason="should fail")
        @distributed
        def test_passes_strictly(): pass

        @pytest.mark.xfail
        @distributed
        def test_passes(): pass

        @pytest.mark.xfail
        @distributed
        def test_death_is_never_expected(ddp):
            if ddp.rank == 1:
                os._exit(1)

        @distributed
        def test_xfail_by_call(): pytest.xfail("all of us")

        @distributed
        def test_fail_by_call(ddp):
            if ddp.rank == 1:
                pytest.fail("by call", pytrace=False)

        @distributed
        def test_warns():
            with pytest.warns(UserWarning, match="careful"):
                warnings.warn("careful")
            with pytest.raises(ExceptionGroup), pytest.deprecated_call():
                warnings.warn("old", DeprecationWarning)
                raise ExceptionGroup("several", [ValueError()])
        """,
        "-rsxX",
        "-v",
    )
    result.assert_outcomes(passed=1, skipped=2, xfailed=3, xpassed=1, failed=4)
    result.stdout.fnmatch_lines(
        [
            "*test_one_fails_in_another_way*",
            "rank 1 of 2 (gloo, cpu) raised TypeError: this one",
            "  rank 0: skipped: xfailed (but a TypeError is not)",
            "*test_passes_strictly*",
            "[[]XPASS(strict)[]] should fail",
            "rank 1 of 2 (gloo, cpu) exited with code 1*",
            "rank 1 of 2 (gloo, cpu) raised Failed: by call",
            "SKIPPED*by condition",
            "SKIPPED*could not import 'no_such_module'*",
            "XFAIL*[[]NOTRUN[]] not to be run",
            "XFAIL*one rank is enough (rank 0 of 2)",
            "XFAIL*all of us",
            "XPASS*",
        ]
    )


def test_ranks_that_disagree_are_reported_as_such(run_suite):
    result = run_suite("""
        @distributed
        def test_one_xfails(ddp):
            if ddp.rank == 0:
                pytest.xfail("just me")

        @distributed
        def test_one_skips_while_one_raises(ddp):
            if ddp.rank == 0:
                pytest.skip("just me")
            raise ValueError("not me")
        """)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "the ranks disagree: rank 0 xfailed (just me), rank 1 passed; xfail on all ranks or on none",
            "rank 1 of 2 (gloo, cpu) raised ValueError: not me",
            "  rank 0: skipped: just me",
        ]
    )


def test_exceptions_of_any_kind(run_suite):
    result = run_suite("""
        class SaysNothing(Exception):
            def __str__(self): raise RuntimeError("no text")

        class Recurses(Exception):
            def __str__(self): return repr(self)
            __repr__ = __str__

        class DoesNotPickle(Exception):
            def __init__(self, first, second):
                super().__init__(first)
                self.lock = threading.Lock()

        class OfItsOwn(BaseException): pass

        RAISED = {
            "silent": SaysNothing, "recursive": Recurses, "unpicklable": lambda: DoesNotPickle("lock", 1),
            "base": lambda: OfItsOwn("base"), "exit": lambda: SystemExit(0), "generator": lambda: GeneratorExit("gone"),
            "interrupt": lambda: KeyboardInterrupt("no Ctrl-C"),
        }

        @pytest.mark.parametrize("name", RAISED)
        @distributed
        def test_odd(ddp, name):
            if ddp.rank == 1:
                raise RAISED[name]()

        @distributed
        def test_chain():
            try:
                {}["nothing there"]
            except KeyError as error:
                raise ValueError("the second") from error

        @distributed
        def test_group():
            raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])

        @distributed
        def test_next(): pass
        """)
    result.assert_outcomes(passed=1, failed=9)
    said = ["SaysNothing: <exception str() failed>", "Recurses: <exception str() failed>", "DoesNotPickle: lock"]
    said += ["OfItsOwn: base", "SystemExit: 0", "GeneratorExit: gone", "KeyboardInterrupt: no Ctrl-C"]
    result.stdout.fnmatch_lines(
        [
            *(f"rank 1 of 2 (gloo, cpu) raised *{text}" for text in said),
            "rank * raised ValueError: the second",
            "E *KeyError: 'nothing there'",
            "The above exception was the direct cause of the following exception:",
            "E *ValueError: the second",
            "rank * raised ExceptionGroup: several (2 sub-exceptions)",
            "*ValueError: one",
            "*TypeError: two",
        ]
    )
    result.stdout.no_fnmatch_line("*pytest_ddp*.py*")


def test_pytest_exit_on_a_rank_ends_the_run(run_suite):
    result = run_suite("""
        @pytest.fixture(scope="module")
        def shared():
            yield
            print("torn down")

        @distributed
        def test_before(shared): pass

        @distributed
        def test_leaves(ddp, shared):
            if ddp.rank == 1:
                pytest.exit("had enough", returncode=17)
            dist.barrier()

        @distributed
        def test_never(shared): pass
        """)
    result.assert_outcomes(passed=1)
    assert result.ret == 17
    result.stdout.fnmatch_lines(["*Exit: had enough (rank 1)*"])


def test_pytest_exit_in_a_teardown_ends_the_run(run_suite):
    result = run_suite("""
        @pytest.fixture
        def leaving():
            yield
            pytest.exit("had enough", returncode=17)

        @distributed
        def test_leaves(leaving): pass

        @distributed
        def test_never(): pass
        """)
    assert result.ret == 17
    result.stdout.fnmatch_lines(["*Exit: had enough (rank 0)*"])
    result.stdout.no_fnmatch_line("*test_never*")


def test_unittest_cases_run_on_ranks_too(run_suite):
    result = run_suite("""
        import unittest

        class TestCase(unittest.TestCase):
            def setUp(self):
                self.rank = dist.get_rank() if dist.is_initialized() else None

            def test_plain(self):
                self.assertIsNone(self.rank)

            @distributed
            def test_method(self):
                self.assertEqual(self.rank, 0)

            @distributed
            @unittest.expectedFailure
            def test_expected(self): self.fail()

            @distributed
            def test_skips(self): self.skipTest("by call")

        @distributed(world_size=2)
        class TestClass(unittest.TestCase):
            def test_size(self): self.assertEqual(dist.get_world_size(), 2)
        """)
    result.assert_outcomes(passed=2, failed=1, xfailed=1, skipped=1)
    result.stdout.fnmatch_lines(["rank 1 of 2 (gloo, cpu) raised AssertionError: 1 != 0", "  rank 0: passed"])


@pytest.mark.parametrize("when", ["setup", "teardown"])
def test_fixtures_may_skip_and_interrupt_too(run_suite, when):
    result = run_suite(f"""
        @pytest.fixture
        def broken(ddp):
            if "{when}" == "teardown":
                yield
            if ddp.rank == 1:
                raise KeyboardInterrupt("in {when}")
            if "{when}" == "setup":
                yield

        @distributed
        def test_it(broken): pass

        @distributed
        def test_next(): pass
        """)
    result.assert_outcomes(errors=1, passed=1 if when == "setup" else 2)
    result.stdout.fnmatch_lines([f"*ERROR at {when} of test_it*", f"rank 1 * raised KeyboardInterrupt: in {when}"])


CONTROLLERS_OWN = """
    import pytest

    def around(item, when):
        if not item.config.pluginmanager.has_plugin("ddp-rank") and item.name.startswith(f"test_{when}"):
            (pytest.skip if item.name.endswith("skips") else pytest.fail)(f"the controller's own {when}")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_setup(item): around(item, "setup")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_call(item): around(item, "call")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(item): around(item, "teardown")
    """


def test_what_a_plugin_raises_around_the_ranks_stands(run_suite):
    result = run_suite(
        """
        @distributed
        def test_setup_fails(): raise AssertionError

        @distributed
        def test_setup_skips(): raise AssertionError

        @distributed
        def test_call_fails(): pass

        @distributed
        def test_call_skips(): pass

        @distributed
        def test_call_fails_and_so_do_ranks(): raise ValueError("on ranks")

        @distributed
        def test_teardown_fails(): pass

        @distributed
        def test_next(): pass
        """,
        "-rA",
        conftest=CONTROLLERS_OWN,
    )
    result.assert_outcomes(passed=2, failed=2, errors=2, skipped=2)
    result.stdout.fnmatch_lines_random(
        [
            "ERROR test_suite.py::test_setup_fails - Failed: the controller's own setup",
            "FAILED test_suite.py::test_call_fails - Failed: the controller's own call",
            "FAILED test_suite.py::test_call_fails_and_so_do_ranks - rank ?: ValueError: *",
            "ERROR test_suite.py::test_teardown_fails - Failed: the controller's own teardown",
            "PASSED test_suite.py::test_next",
        ]
    )
