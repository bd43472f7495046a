"""Mismatches and deadlocks as a user of `observe=True` meets them: in the report of the test, without any timeout."""

import pytest

OBSERVED = "@distributed(world_size=2, observe=True, timeout=300)"
NO_TIMEOUT = ["*deadline of 300 s*"]


def test_a_deadlock_is_reported_with_operation_line_and_stack(run_suite):
    result = run_suite(
        f"""
        {OBSERVED}
        def test_it():
            dist.all_reduce(torch.ones(4))
            if dist.get_rank() == 0:
                dist.broadcast(torch.ones(4), 0)
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            (
                "rank 0 of 2 (gloo, cpu) deadlocked: it waits in broadcast #2 float32[[]4] with root 0 at "
                "test_suite.py:11, which rank 1 never entered: it has returned"
            ),
            "  rank 1: passed",
            '  File "*test_suite.py", line 11 in test_it',
            "FAILED test_suite.py::test_it - rank 0 deadlocked: it waits in broadcast #2 *",
        ]
    )
    result.stdout.no_fnmatch_line(*NO_TIMEOUT)


def test_a_mismatch_is_raised_where_it_is_called_and_ends_who_waits(run_suite):
    result = run_suite(
        f"""
        {OBSERVED}
        def test_it():
            dist.all_reduce(torch.ones(4 + dist.get_rank()))
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            (
                r"rank (\d) of 2 \(gloo, cpu\) raised .*CollectiveMismatch: rank \1 calls all_reduce #1 float32\[.\] "
                r"at test_suite.py:9, where rank . called all_reduce #1 float32\[.\] at test_suite.py:9; all "
                "ranks must call it with the same shape"
            ),
            (
                r"  rank \d: was still running when another rank failed, and was stopped; it waits in all_reduce "
                r"#1 .*|  rank \d: raised .*CollectiveMismatch.*"
            ),
            r">       dist.all_reduce\(torch.ones\(4 \+ dist.get_rank\(\)\)\)",
        ]
    )
    result.stdout.no_fnmatch_line(*NO_TIMEOUT)


def test_torchs_own_ddp_that_waits_in_backward_is_found(run_suite):
    result = run_suite(
        f"""
        {OBSERVED}
        @pytest.mark.parametrize("megabytes", [0.0001, 25])
        def test_it(megabytes):
            from torch.nn.parallel import DistributedDataParallel
            layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
            model = DistributedDataParallel(layers, bucket_cap_mb=megabytes)
            loss = model(torch.ones(2, 8)).sum()
            if dist.get_rank() == 1:
                loss.backward()
        """
    )
    result.assert_outcomes(failed=2)
    line = "rank 1 of 2 (gloo, cpu) deadlocked: it waits in all_reduce #* at test_suite.py:15, which rank 0 never *"
    result.stdout.fnmatch_lines([line, line])


@pytest.mark.parametrize("wait", ["wait()", "then(lambda future: future.value()).wait()"])
def test_waiting_for_a_future_is_waiting(run_suite, wait):
    result = run_suite(
        f"""
        {OBSERVED}
        def test_it():
            if dist.get_rank() == 0:
                dist.all_reduce(torch.ones(4), async_op=True).get_future().{wait}
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["rank 0 of 2 (gloo, cpu) deadlocked: it waits in all_reduce #1 *"])


def test_setup_and_teardown_are_looked_at_too(run_suite):
    result = run_suite(
        f"""
        @pytest.fixture
        def late():
            yield
            if dist.get_rank() == 0:
                dist.barrier()

        {OBSERVED}
        def test_teardown(late):
            pass

        @pytest.fixture
        def early():
            if dist.get_rank() == 1:
                dist.barrier()

        {OBSERVED}
        def test_setup(early):
            pass
        """
    )
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(
        ["rank 0 of 2 * deadlocked: it waits in barrier #1 *", "rank 1 of 2 * deadlocked: it waits in barrier #1 *"]
    )


def test_ranks_that_skip_and_ranks_that_wait_disagree(run_suite):
    result = run_suite(
        f"""
        {OBSERVED}
        def test_it():
            if dist.get_rank() == 1:
                pytest.skip("not here")
            dist.barrier()
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "the ranks disagree: rank 1 skipped: not here, while rank 0 continued and waited for it*",
            "  rank 0: * it waits in barrier #1 at test_suite.py:11, which rank 1 never entered: it has skipped",
            "  rank 1: skipped: not here",
        ]
    )


def test_functions_called_on_ranks_are_looked_at_too(run_suite):
    result = run_suite(
        """
        def one_waits():
            if dist.get_rank() == 0:
                dist.barrier()

        def test_it(ddp_ranks):
            with pytest.raises(Exception, match="rank 0 .* deadlocked: it waits in barrier #1 at test_suite.py:9"):
                ddp_ranks(2, observe=True, timeout=300).run(one_waits)
        """
    )
    result.assert_outcomes(passed=1)


def test_hypothesis_shrinks_a_deadlock_and_a_mismatch(run_given):
    result = run_given(
        f"""
        {OBSERVED}
        @fast
        @given(st.integers(0, 20))
        def test_deadlock(n):
            if dist.get_rank() == 0 or n < 7:
                dist.all_reduce(torch.ones(n))

        {OBSERVED}
        @fast
        @given(st.integers(0, 20))
        def test_mismatch(n):
            dist.all_reduce(torch.ones(n + (n > 7 and dist.get_rank())))
        """
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*deadlocked: it waits in all_reduce #*", "*n=7,", "*CollectiveMismatch*", "*n=8,"])


def test_the_next_test_is_unharmed(run_suite):
    result = run_suite(
        f"""
        {OBSERVED}
        def test_fails():
            if dist.get_rank() == 0:
                dist.recv(torch.ones(4), 1)

        {OBSERVED}
        def test_passes():
            dist.all_reduce(torch.ones(4))

        @distributed(world_size=2)
        def test_passes_unobserved():
            dist.all_reduce(torch.ones(4))
        """
    )
    result.assert_outcomes(failed=1, passed=2)


LEFT = """
    {observed}
    def test_it():
        if dist.get_rank() == 0:
            dist.{call}

    {observed}
    def test_after():
        dist.all_reduce(torch.ones(4))
"""


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("isend(torch.ones(4), 1)", "send #1 float32[[]4] to rank 1 at test_suite.py:10"),
        ("irecv(torch.ones(4), 1)", "recv #1 float32[[]4] from rank 1 at test_suite.py:10"),
        ("irecv(torch.ones(4))", "recv #1 float32[[]4] from any rank at test_suite.py:10"),
        ("all_reduce(torch.ones(4), async_op=True)", "all_reduce #1 float32[[]4] at test_suite.py:10"),
    ],
)
def test_what_only_one_rank_has_begun_is_left_behind(run_suite, call, what):
    result = run_suite(LEFT.format(observed=OBSERVED, call=call), "-W", "default")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines([f"*LeakWarning: test_it left behind: {what}, in which rank 1 took no part*"])


def test_what_both_have_begun_is_not_left_behind(run_suite):
    result = run_suite(
        f"""
        {OBSERVED}
        def test_it():
            other = 1 - dist.get_rank()
            dist.isend(torch.ones(4), other)
            dist.irecv(torch.ones(4), other)
            dist.all_reduce(torch.ones(4), async_op=True)
        """
    )
    result.assert_outcomes(passed=1)


def test_a_slow_rank_is_no_deadlock(run_suite):
    result = run_suite(
        f"""
        {OBSERVED}
        def test_it():
            if dist.get_rank() == 1:
                threading.Event().wait(2)
            dist.all_reduce(torch.ones(4))
        """
    )
    result.assert_outcomes(passed=1)
