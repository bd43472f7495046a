"""After a failure, a rank that announced an exception is waited for; other ranks are ended after the grace."""


def test_a_rank_that_takes_long_to_report_its_exception_is_waited_for(run_suite):
    result = run_suite("""
        import time

        class Wordy(Exception):
            def __str__(self):
                time.sleep(1.5)  # longer than the grace
                return "at last"

        @distributed(world_size=3)
        def test_it(ddp):
            if ddp.rank == 0:
                raise Wordy
            assert ddp.rank == 2, "at once"
            dist.all_reduce(torch.ones(3))
        """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 1 of 3 (gloo, cpu) raised AssertionError: at once*",
            "  rank 0: raised *Wordy: at last",
            "  rank 2: was still running when another rank failed, and was stopped; *",
        ]
    )


def test_a_rank_that_goes_on_after_a_failed_subtest_is_not_waited_for(run_suite):
    result = run_suite("""
        @distributed(timeout=10**6)
        def test_it(ddp, subtests):
            with subtests.test("first"):
                assert ddp.rank, "in a subtest"
            dist.barrier()
            assert ddp.rank == 0, "at once"
            dist.all_reduce(torch.ones(3))
        """)
    result.stdout.fnmatch_lines(
        ["rank 1 of 2 (gloo, cpu) raised AssertionError: at once*", "  rank 0: was still running when another *"]
    )
