"""`@distributed` with Hypothesis's `@given`: the controller draws, every rank runs the same example."""


def test_what_hypothesis_needs_reaches_it(run_given):
    """Settings, explicit examples, seeds and the blob that reproduces a failure are Hypothesis's own."""
    result = run_given(
        """
        drawn = []

        @distributed
        @given(x=st.integers(0, 1000))
        @settings(fast, max_examples=17, phases=[Phase.generate])
        def test_count(ddp, x):
            drawn.append(x)

        @distributed
        def test_counted(): assert len(drawn) == 17

        @distributed
        @example(x=123456)
        @given(x=st.integers(0, 10))
        @fast
        def test_explicit(ddp, x): assert x <= 10

        @distributed
        @example(x=-1).xfail(raises=ZeroDivisionError)
        @given(x=st.integers(0, 10))
        @fast
        def test_expected(ddp, x):
            if x < 0:
                1 / 0

        @distributed
        @seed(7)
        @given(x=st.integers())
        @settings(fast, phases=[Phase.generate], print_blob=True)
        def test_blob(ddp, x): assert x < 10**6
        """,
        "--hypothesis-show-statistics",
    )
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        [
            "rank ? of 2 (gloo, cpu) raised AssertionError: assert 123456 <= 10",
            "E * explicit * test_explicit(",
            "E *You can reproduce this *@reproduce_failure(*",
            "*test_count:*",
            "* 17 passing*",
        ]
    )


def test_examples_rejected_on_any_rank_are_rejected(run_given):
    result = run_given(
        """
        @distributed
        @given(x=st.integers(0, 1000))
        @fast
        def test_on_all(ddp, x):
            assume(x % 2)
            dist.all_reduce(torch.ones(3))
            assert x % 2 and x < 100

        @distributed
        @given(x=st.integers(0, 1000))
        @settings(fast, phases=[Phase.generate])
        def test_on_one(ddp, x):
            dist.all_reduce(torch.ones(3))
            if ddp.rank == 0 and x > 900:
                reject()

        @distributed
        @given(x=st.integers(0, 1000))
        @fast
        def test_while_others_wait(ddp, x):
            if ddp.rank == 0:
                assume(x < 50)
            dist.all_reduce(torch.ones(3))
        """,
        "--hypothesis-show-statistics",
    )
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "E *x=101,",
            (
                "the ranks disagree: rank 0 skipped: failed to satisfy assume() in test_while_others_wait (line *), "
                "while rank 1 continued and waited for it; make the same decision on every rank, *"
            ),
            "  rank 1 waited in all_reduce #*, which rank 0 never entered",
            "E *x=50,",
            "*::test_on_one:*",
            "* because: *reject() in test_on_one *",
        ]
    )


def test_notes_events_and_targets_reach_hypothesis(run_given):
    result = run_given(
        """
        @distributed
        @given(x=st.integers(0, 100))
        @settings(fast, phases=[Phase.generate, Phase.shrink, Phase.target], max_examples=50)
        def test_it(ddp, x):
            note(f"drew {x}")
            note(f"on {ddp.rank}")
            event("even" if x % 2 == 0 else "odd")
            target(x + ddp.rank, label="size")

        @distributed
        @given(x=st.integers(0, 100))
        @fast
        def test_fails(ddp, x):
            note(f"drew {x}")
            if ddp.rank == 1:
                note("only here")
            assert x < 9
        """,
        "--hypothesis-show-statistics",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E *x=9,",
            "E *drew 9",
            "E *rank 1: only here",
            "*::test_it:*",
            "*Events:*",
            "* even",
            "*Highest target score: 101*label='size'*",
        ]
    )
    assert "rank 0: drew" not in result.stdout.str()


def test_drawn_objects_are_of_the_classes_that_the_ranks_know(run_given):
    result = run_given(
        """
        @dataclass
        class Layer:
            width: int

        @distributed
        @given(layers=st.lists(st.builds(Layer, st.integers(1, 5)), max_size=3))
        @fast
        def test_it(ddp, layers): assert all(isinstance(layer, Layer) for layer in layers)
        """,
        "--import-mode=importlib",
    )
    result.assert_outcomes(passed=1)


def test_fixtures_of_ranks_go_with_given(run_given):
    """The health check on function-scoped fixtures holds for users' fixtures; no fixture is made in the controller."""
    result = run_given("""
        @pytest.fixture
        def fresh(ddp): return [ddp.rank]

        @pytest.fixture(scope="module")
        def kept(): return [dist.get_rank()]

        @distributed
        @given(x=st.integers())
        @fast
        def test_fresh(fresh, x): pass

        @distributed
        @given(x=st.integers())
        @settings(fast, suppress_health_check=[HealthCheck.function_scoped_fixture])
        def test_suppressed(ddp, fresh, x): assert fresh == [ddp.rank]

        @distributed
        @given(x=st.integers())
        @fast
        def test_kept(ddp, kept, x): assert kept == [ddp.rank]
        """)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["E *FailedHealthCheck: *test_fresh* uses a function-scoped fixture 'fresh'.*"])


def test_methods_parameters_and_world_sizes_go_with_given(run_given):
    result = run_given("""
        class TestClass:
            here = 3

            @pytest.mark.parametrize("letter", ["a", "b"])
            @distributed(world_size=[1, 2])
            @given(st.integers(0, 100))
            @fast
            def test_it(self, ddp, letter, x):
                assert (self.here, letter in "ab") == (3, True)
                assert x < 20 or ddp.world_size == 1 or letter == "a"

            @distributed
            @given(x=st.integers())
            @fast
            def test_keywords(self, x): assert self.here == 3
        """)
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["E * self=<test_suite.TestClass object at *", "E * letter='b',", "E * x=20,"])


def test_skips_and_marks_behave_as_in_one_process(run_given):
    result = run_given(
        """
        @distributed
        @given(x=st.integers())
        @fast
        def test_skip(ddp, x): pytest.skip("not here")

        @distributed
        @given(x=st.integers())
        @fast
        def test_skip_on_one(ddp, x):
            if ddp.rank == 1:
                pytest.skip("only here")

        @pytest.mark.xfail(reason="known", raises=AssertionError)
        @distributed
        @given(x=st.integers())
        @fast
        def test_xfail(ddp, x): assert x < 10

        @pytest.mark.xfail(strict=True)
        @distributed
        @given(x=st.integers())
        @fast
        def test_xpass(ddp, x): pass

        @distributed
        @given(x=st.integers())
        @settings(fast, suppress_health_check=[HealthCheck.function_scoped_fixture])
        def test_subtests(ddp, subtests, x):
            with subtests.test("part"):
                assert x < 5
        """,
        "-rsx",
    )
    result.assert_outcomes(skipped=1, xfailed=1, failed=4)
    result.stdout.fnmatch_lines(
        [
            "the ranks disagree: rank 0 passed, rank 1 skipped (only here); skip on all ranks or on none",
            "*XPASS(strict)*",
            "SKIPPED*test_suite.py:*: not here",
            "XFAIL*known",
        ]
    )
    result.stdout.fnmatch_lines(["rank ? of 2 (gloo, cpu) raised AssertionError in a subtest: assert 5 < 5"])
