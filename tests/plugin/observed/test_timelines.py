"""Failure reports of observed tests show the timeline of every rank."""


def timelines(result) -> list[str]:
    return [line.strip("- ") for line in result.outlines if "Timeline" in line]


def test_the_report_of_a_failed_test_has_the_timelines_of_all_ranks(run_suite):
    result = run_suite(
        """
        @distributed(world_size=2, observe=True)
        def test_it(ddp):
            dist.all_reduce(torch.ones(1))
            assert ddp.rank == 0


        @distributed(world_size=2)
        def test_not_observed(ddp):
            dist.all_reduce(torch.ones(1))
            assert ddp.rank == 0
        """
    )
    result.assert_outcomes(failed=2)
    assert timelines(result) == ["Timeline call (ranks 0, 1)"]
    result.stdout.re_match_lines(
        [r"  1-3  launched, waited  all_reduce #1  \S+ \(0-1\)  float32\[1\]      4  test_suite\.py:\d+$"]
    )


def test_the_report_has_the_operations_of_a_rank_that_died(run_suite):
    result = run_suite(
        """
        @distributed(world_size=2, observe=True)
        def test_it(ddp):
            dist.all_reduce(torch.ones(1))
            if ddp.rank == 1:
                os._exit(1)
        """
    )
    result.assert_outcomes(failed=1)
    assert timelines(result) == ["Timeline call (rank 0)", "Timeline call (rank 1)"]
    result.stdout.re_match_lines([r"entered  all_reduce #1  \S+ \(0-1\)  float32\[1\]  test_suite\.py:\d+$"])


def test_a_failed_setup_or_teardown_has_its_timeline(run_suite):
    result = run_suite(
        """
        @pytest.fixture
        def fails_at_setup(ddp):
            dist.barrier()
            raise ValueError


        @pytest.fixture
        def fails_at_teardown(ddp):
            yield
            dist.barrier()
            raise ValueError


        @distributed(world_size=2, observe=True)
        def test_setup(fails_at_setup): ...


        @distributed(world_size=2, observe=True)
        def test_teardown(fails_at_teardown): ...
        """
    )
    result.assert_outcomes(errors=2, passed=1)
    assert timelines(result) == ["Timeline setup (ranks 0, 1)", "Timeline teardown (ranks 0, 1)"]


def test_with_hypothesis_the_timeline_is_of_the_reported_example(run_given):
    result = run_given(
        """
        @distributed(world_size=2, observe=True)
        @fast
        @given(st.integers(0, 9))
        def test_it(ddp, x):
            for _ in range(x):
                dist.all_reduce(torch.ones(1))
            assert x < 3
        """
    )
    result.assert_outcomes(failed=1)
    assert timelines(result) == ["Timeline call (ranks 0, 1)"]
    assert sum(" all_reduce #" in line for line in result.outlines) == 3


def test_a_failed_remote_call_has_the_timeline(run_suite):
    result = run_suite(
        """
        from pytest_ddp import RankFailure
        from pytest_ddp.observed import collectives


        def fails():
            dist.barrier()
            collectives().assert_count(0)


        def test_it(ddp_ranks):
            with pytest.raises(RankFailure) as caught:
                ddp_ranks(world_size=2, observe=True).run(fails)
            assert "AssertionError: expected 0 operations, saw 1:" in str(caught.value)
            assert "---- ranks 0, 1: timeline ----" in str(caught.value)
            assert "launched, waited  barrier #1" in str(caught.value)


        def count():
            dist.barrier()
            return collectives().select("barrier")


        def test_selections_are_returned_as_lists(ddp_ranks):
            for entries in ddp_ranks(world_size=2, observe=True).run(count):
                assert [entry.op for entry in entries] == ["barrier"]
        """
    )
    result.assert_outcomes(passed=2)


def test_expected_failures_have_no_timeline(run_suite):
    result = run_suite(
        """
        @pytest.mark.xfail(strict=True)
        @distributed(world_size=2, observe=True)
        def test_it(ddp):
            dist.all_reduce(torch.ones(1))
            assert ddp.rank == 0
        """
    )
    result.assert_outcomes(xfailed=1)
    assert timelines(result) == []


def test_the_last_line_shown_is_the_call_in_the_test(run_suite):
    result = run_suite("""
        @distributed(world_size=2, observe=True)
        def test_mismatch(ddp):
            dist.all_reduce(torch.ones(4 + ddp.rank))
        """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">*dist.all_reduce(torch.ones(4 + ddp.rank))",
            "E *CollectiveMismatch: rank * calls all_reduce #1 float32[[]*",
            "test_suite.py:*: CollectiveMismatch",
        ]
    )
    result.stdout.no_fnmatch_line("*distributed_c10d.py:*: CollectiveMismatch")
    result.stdout.no_fnmatch_line("*posting.py*")
