"""Markers that do not stand on the test itself: of base classes, and those that a plugin or a conftest file adds."""

CONFTEST = """
import pytest
from pytest_ddp import distributed

def pytest_collection_modifyitems(items):
    for item in items:
        if mark := item.get_closest_marker("ranks"):
            item.add_marker(distributed(world_size=mark.args[0]))

def pytest_runtest_setup(item):
    if item.get_closest_marker("ranks_in_setup"):
        item.add_marker(distributed(world_size=2))

def pytest_configure(config):
    config.addinivalue_line("markers", "ranks(n): ours")
    config.addinivalue_line("markers", "ranks_in_setup: ours")
"""


def test_the_decorator_of_a_class_wins_over_that_of_its_bases(run_suite):
    result = run_suite("""
        import unittest

        @distributed(world_size=2, timeout=50)
        class Base:
            def test_size(self):
                assert dist.get_world_size() == self.expected

        class TestInherits(Base):
            expected = 2

        @distributed(world_size=3)
        class TestDerived(Base):
            expected = 3

            @distributed(world_size=1)
            def test_own(self):
                assert dist.get_world_size() == 1

        @distributed(world_size=2)
        class BaseCase(unittest.TestCase): ...

        class BetweenCase(BaseCase):
            pytestmark = pytest.mark.distributed(world_size=1)

        @distributed(world_size=3)
        class TestDerivedCase(BetweenCase):
            def test_size(self):
                assert dist.get_world_size() == 3
        """)
    result.assert_outcomes(passed=4)


def test_a_marker_that_a_conftest_adds_after_collection_counts(run_suite):
    result = run_suite(
        """
        @pytest.mark.ranks(3)
        def test_runs_on_ranks():
            assert dist.get_world_size() == 3

        @pytest.mark.ranks([1, 2])
        def test_several_sizes(): pass

        @pytest.mark.ranks_in_setup
        def test_too_late(): pass

        def test_plain():
            assert not dist.is_initialized()
        """,
        conftest=CONFTEST,
    )
    result.assert_outcomes(passed=2, failed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "the test asks for 1 and 2 ranks, but pytest cannot run it once per world size: *",
            "the marker `distributed` was added after the tests had been collected, too late*pytest_collection_mod*",
        ]
    )


def test_a_test_case_that_asks_for_several_world_sizes_is_refused(run_suite):
    source = """
        import unittest

        @distributed{}
        class TestSizes(unittest.TestCase):
            def test_size(self): pass
        """
    for decorator, option in (("(world_size=[1, 2])", "--ddp-world-size=3"), ("", "--ddp-world-size=1,2")):
        result = run_suite(source.format(decorator), option)
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines(["the test asks for 1 and 2 ranks, but pytest cannot*@distributed(world_size=2)"])


def test_what_a_conftest_wraps_after_collection_stays_wrapped(run_suite):
    result = run_suite(
        """
        @distributed(world_size=1)
        def test_it(): pass
        """,
        "-s",
        conftest="""
def pytest_collection_modifyitems(items):
    for item in items:
        item.runtest = lambda run=item.runtest: (print("wrapped"), run())
""",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*wrapped*"])
