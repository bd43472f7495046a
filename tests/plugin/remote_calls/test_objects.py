"""`ddp_ranks(...).hold(...)`: objects that live on ranks between calls."""

import pytest

MODEL = """
        import gc

        class Counter:
            def __init__(self, start):
                self.value = start + dist.get_rank()

        def add(counter, number):
            counter.value += number
            return counter.value

        def total(counter):
            summed = torch.tensor(counter.value)
            dist.all_reduce(summed)
            return summed.item()

        def counters():
            gc.collect()
            return sum(type(found).__name__ == "Counter" for found in gc.get_objects())
"""


def test_objects_stay_on_ranks_until_they_are_closed(run_suite):
    result = run_suite(
        MODEL
        + """
        def test_it(ddp_ranks):
            ranks = ddp_ranks(world_size=2)
            with ranks.hold(Counter, 10) as counter:
                assert counter.run(add, 5) == [15, 16]
                assert counter.run(total) == [31, 31]
                assert counter.run(lambda held: dist.get_world_size()) == [2, 2]
            assert ranks.run(counters) == [0, 0]
            with pytest.raises(Exception, match=r"no longer hold the object: it was closed; .* with hold\\(\\)"):
                counter.run(total)

        def test_importlib(ddp_ranks):
            with ddp_ranks(world_size=1).hold(Counter, 1) as counter:
                assert counter.run(lambda held: isinstance(held, Counter)) == [True]
        """,
        "--import-mode=importlib",
    )
    result.assert_outcomes(passed=2)


def test_a_failed_call_breaks_the_hold(run_suite):
    result = run_suite(
        MODEL
        + """
        from pytest_ddp import PytestDDPError, RankFailure

        def fail(counter):
            if dist.get_rank() == 1:
                raise ValueError("no good")

        def test_broken(ddp_ranks):
            ranks = ddp_ranks(world_size=2)
            with ranks.hold(Counter, 0) as counter:
                with pytest.raises(RankFailure, match="rank 1 of 2 .* raised ValueError: no good"):
                    counter.run(fail)
                with pytest.raises(PytestDDPError, match=r"an earlier call failed \\(rank 1 of 2 .*no good\\); create"):
                    counter.run(total)
            assert ranks.run(counters) == [0, 0]

        def test_not_made(ddp_ranks):
            ranks = ddp_ranks(world_size=2)
            with pytest.raises(RankFailure, match="ZeroDivisionError"):
                ranks.hold(lambda: 1 / 0)
            assert len(ranks.run(int)) == 2

        def test_left(ddp_ranks):
            ranks = ddp_ranks(world_size=2)
            with ranks.hold(Counter, 0) as counter:
                ranks.run(int)
                with pytest.raises(PytestDDPError, match="the same ranks have run something else since"):
                    counter.run(total)
        """
    )
    result.assert_outcomes(passed=3)


STOPS = """
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    result = yield
    if item.name == "test_stops":
        item.session.shouldstop = "enough"
    return result
"""


@pytest.mark.parametrize("ending", ["test_exits", "test_stops"])
def test_what_a_fixture_holds_ends_in_order_when_the_run_is_interrupted(run_suite, ending):
    """Ctrl-C goes the way of `pytest.exit`; a run that stops between two tests leaves the module set up, too."""
    result = run_suite(
        MODEL
        + """
        @pytest.fixture(scope="module")
        def counter(ddp_ranks):
            with ddp_ranks(world_size=2).hold(Counter, 10) as counter:
                yield counter
                print("in the end:", counter.run(total))

        def test_before(counter):
            assert counter.run(add, 5) == [15, 16]

        def test_exits(counter): pytest.exit("enough")

        def test_stops(counter): pass

        def test_never(counter): pass
        """,
        "-s",
        "-k",
        f"test_before or {ending} or test_never",
        conftest=STOPS,
    )
    result.stdout.fnmatch_lines(["*in the end: [[]31, 31[]]", "*enough*", "*passed*"])
    result.stderr.no_fnmatch_line("*Traceback*")


def test_a_state_machine_over_ranks_shrinks_to_the_least_steps(run_suite):
    """The planted bug: once something has been popped, rank 1 forgets what is large.

    Each superfluous step can be left out by itself: where two steps can only be left out together, such as a push and
    the pop that needs it, Hypothesis often stops at more steps than necessary, in one process too.
    """
    result = run_suite("""
        from functools import partial
        from hypothesis import settings, strategies as st
        from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

        class Queue:
            def __init__(self):
                self.entries, self.popped = [], False

        def push(queue, number):
            if queue.popped and number > 100 and dist.get_rank() == 1:
                return
            queue.entries.append(number)

        def pop(queue):
            queue.popped = True
            return queue.entries.pop(0) if queue.entries else None

        def sizes(queue):
            everyone = [torch.tensor(0) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, torch.tensor(len(queue.entries)))
            return [size.item() for size in everyone]

        class QueueMachine(RuleBasedStateMachine):
            def __init__(self, ranks):
                super().__init__()
                self.queue = ranks.hold(Queue)
                self.expected = []

            @rule(number=st.integers())
            def push(self, number):
                self.queue.run(push, number)
                self.expected.append(number)
                assert self.queue.run(sizes) == [[len(self.expected)] * 2] * 2

            @rule()
            def pop(self):
                expected = self.expected.pop(0) if self.expected else None
                assert self.queue.run(pop) == [expected] * 2

            def teardown(self):
                self.queue.close()

        def test_queue(ddp_ranks):
            machine = partial(QueueMachine, ddp_ranks(world_size=2))
            run_state_machine_as_test(machine, settings=settings(database=None, deadline=None, derandomize=True))
        """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E *state = *QueueMachine(*",
            "E *state.pop()",
            "E *state.push(number=101)",
            "E *state.teardown()",
        ],
        consecutive=True,
    )


def test_bugs_met_through_ddp_ranks_are_told_apart(run_suite):
    result = run_suite("""
        from hypothesis import given, settings, strategies as st

        def work(number):
            if number > 100:
                raise ValueError("large")
            if number < -100 and dist.get_rank() == 1:
                raise ValueError("small")

        @settings(deadline=None, database=None, derandomize=True)
        @given(number=st.integers())
        def test_it(ddp_ranks, number):
            ddp_ranks(world_size=2).run(work, number)
        """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Hypothesis found 2 distinct failures.*"])
    result.stdout.fnmatch_lines(["* number=101,"])
    result.stdout.fnmatch_lines(["* number=-101,"])
