"""Failing examples of `@distributed @given` tests: shrunk where that can be, told in any case."""

from hanging import ended_when, hangs, waits


def test_failing_examples_shrink_to_the_least(run_given):
    result = run_given("""
        @distributed(world_size=4)
        @given(x=st.integers(), l=st.lists(st.integers()))
        @fast
        def test_alike(ddp, x, l):
            dist.all_reduce(torch.tensor(len(l)))
            assert not (x > 37 and len(l) > 2)

        @given(x=st.integers(0, 2000))
        @fast
        @distributed(world_size=4)
        def test_on_one_rank(ddp, x):
            total = torch.tensor(x)
            dist.all_reduce(total)
            if ddp.rank == 3:
                assert total < 1000

        @distributed(world_size=4)
        @given(x=st.integers(0, 1000))
        @fast
        def test_while_others_wait(ddp, x):
            if ddp.rank == 2:
                assert x < 100
            dist.all_reduce(torch.ones(3))
        """)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "rank ? of 4 (gloo, cpu) raised AssertionError: assert not (38 > 37 and 3 > 2)",
            "*x = 38, l = [[]0, 0, 0[]]",
            "E * test_alike(",
            "E * ddp=...,",
            "E * x=38,",
            "E * l=[[]0, 0, 0[]],",
            "rank 3 of 4 (gloo, cpu) raised AssertionError: assert tensor(1000) < 1000",
            "  ranks 0, 1, 2: passed",
            "E * x=250,",
            "rank 2 of 4 (gloo, cpu) raised AssertionError: assert 100 < 100",
            "  ranks 0, 1, 3: *; they wait in all_reduce #*, which rank 2 never entered: it has failed",
            "E * x=100,",
        ]
    )


def test_distinct_bugs_are_all_shown(run_given):
    result = run_given("""
        @distributed
        @given(x=st.integers())
        @fast
        def test_it(ddp, x):
            if x > 10:
                raise ValueError("large")
            if x < -10 and ddp.rank == 0:
                raise ValueError("small") from KeyError("the cause")
        """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*KeyError: 'the cause'"])
    result.stdout.fnmatch_lines(["Hypothesis found 2 distinct failures.*", "*--- failure 2 of 2: ---*"])
    result.stdout.fnmatch_lines(["rank ? of 2 (gloo, cpu) raised ValueError: large", "E * x=11,"])
    result.stdout.fnmatch_lines(["rank 0 of 2 (gloo, cpu) raised ValueError: small", "E * x=-11,"])
    result.stdout.fnmatch_lines(["FAILED *test_it - 2 distinct failures, the last: rank *"])


def test_a_crash_shrinks_and_the_next_test_is_unharmed(run_given):
    result = run_given("""
        @distributed
        @given(x=st.integers(0, 1000))
        @fast
        def test_exit(ddp, x):
            dist.all_reduce(torch.ones(3))
            if ddp.rank == 1 and x >= 30:
                os._exit(3)
            dist.all_reduce(torch.ones(3))

        @distributed
        def test_next(ddp): dist.all_reduce(torch.ones(3))
        """)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 1 of 2 (gloo, cpu) exited with code 3 before it finished; *",
            "  rank 0: failed because a peer left the group; *",
            "E * test_exit(",
            "E * x=30,",
        ]
    )


def test_a_hang_is_shown_as_it_was_found(run_given):
    suite = """
        @distributed(timeout=1)
        @given(x=st.integers(0, 1000))
        @fast
        def test_it(ddp, x):
            if ddp.rank == 1 and x >= 3:
                print("hanging", flush=True)
                threading.Event().wait()
            dist.all_reduce(torch.ones(3))
        """
    with ended_when(one_hangs_and_is_waited_for):
        result = run_given(suite)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 1 of 2 (gloo, cpu) was still running at its deadline of 1 s; *",
            "E * Not shrunk: each further example that hangs would run until its deadline.",
            "E * test_it(",
        ]
    )


def one_hangs_and_is_waited_for(ranks) -> bool:
    """Whether rank 1 hangs while rank 0 waits for it."""
    return len(ranks) == 2 and hangs(ranks[1]) and waits(ranks[0], ranks[1].collectives_entered + 1)


def test_what_cannot_be_is_named_with_the_way_around(run_given):
    result = run_given("""
        @distributed
        @given(x=st.integers(), data=st.data())
        @fast
        def test_data(ddp, x, data): data.draw(st.integers())

        @distributed
        @given(random=st.randoms())
        @fast
        def test_randoms(random): pass

        @distributed
        @given(function=st.functions(like=lambda x: x, returns=st.integers()))
        @fast
        def test_functions(function): function(1)

        @distributed
        @given(lock=st.builds(threading.Lock))
        @fast
        def test_lock(lock): pass

        from hypothesis.stateful import RuleBasedStateMachine, rule

        class Machine(RuleBasedStateMachine):
            @rule()
            def step(self): pass

        TestMachine = distributed(Machine.TestCase)
        """)
    result.assert_outcomes(failed=4, errors=1)
    result.stdout.fnmatch_lines(
        [
            "test_data: the argument 'data' draws while the test runs, *with @st.composite or .flatmap() *",
            "test_randoms: the argument 'random' draws while the test runs, *a seed in place of st.randoms(), *",
            "test_functions: the argument 'function' draws while the test runs, *of yours in place of st.functions()",
            "test_lock: the argument 'lock' (a lock) cannot be sent to the ranks: TypeError: *; draw values that can *",
        ]
    )
    result.stdout.fnmatch_lines(["@distributed does not work on a state machine, *ddp_ranks(world_size=2).hold(*"])


def test_a_test_that_cannot_be_set_up_again_shows_the_example_as_it_was_found(run_given):
    result = run_given("""
        made = []

        @pytest.fixture(scope="module")
        def once():
            made.append(1)
            assert len(made) == 1, "only once"

        @distributed
        @given(x=st.integers(0, 1000))
        @fast
        def test_it(ddp, once, x):
            if ddp.rank == 0:
                assert x < 10
            dist.all_reduce(torch.ones(3))
        """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 0 of 2 (gloo, cpu) raised AssertionError: assert * < 10",
            "E * No further example was run: the test could not be set up again: *only once*",
            "E * test_it(",
        ]
    )


def test_errors_of_hypothesis_come_through(run_given):
    """Deadlines measure the ranks; what fails only sometimes is flaky; assumptions may be impossible."""
    result = run_given("""
        @distributed
        @given(x=st.booleans())
        @settings(database=None, deadline=100)
        def test_slow(ddp, x):
            if ddp.rank == 1:
                threading.Event().wait(0.5)

        once = []

        @distributed
        @given(x=st.integers())
        @fast
        def test_flaky(ddp, x):
            once.append(x)
            assert len(once) != 3

        @distributed
        @given(x=st.integers(0, 3))
        @fast
        def test_unsatisfiable(ddp, x): assume(False)
        """)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "*DeadlineExceeded: Test took *, which exceeds the deadline of 100.00ms*",
            "E *The last example took longest on rank 1: *ms.",
            "*Flaky*produces unreliable results*",
            "E *Unsatisfiable: *test_unsatisfiable*",
        ]
    )
