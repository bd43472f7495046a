"""A failure of any rank is one report: root cause first, values shown, every rank accounted for."""

from hanging import ended_when, hangs, waits


def test_a_failing_assertion_shows_its_values_and_what_became_of_the_others(run_suite):
    result = run_suite("""
        @distributed(world_size=3)
        def test_it(ddp):
            print("hello from", ddp.rank)
            if ddp.rank == 1:
                assert {"rank": ddp.rank} == {"rank": 7}
            if ddp.rank == 2:
                dist.all_reduce(torch.ones(3))
        """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 1 of 3 (gloo, cpu) raised AssertionError: assert {'rank': 1} == {'rank': 7}",
            "  rank 0: passed",
            (
                "  rank 2: was still running when another rank failed, and was stopped; "
                "it waits in all_reduce #1 float32[[]3[]], which rank 0 never entered: it has returned, "
                "which rank 1 never entered: it has failed"
            ),
            "> *assert {*rank*: ddp.rank} == *",
            "E * Differing items:",
            "test_suite.py:*: AssertionError",
            "*rank 2: Python stacks*",
            "*in test_it",
            "*Captured stdout+stderr call (rank 0)*",
            "hello from 0",
            "*Captured stdout+stderr call (rank 1)*",
            "hello from 1",
            "*Captured stdout+stderr call (rank 2)*",
            "hello from 2",
            "FAILED *::test_it - rank 1: AssertionError: *",
        ]
    )
    result.stdout.no_fnmatch_line("*pytest_ddp*")


def test_the_last_collectives_of_every_rank_are_told_when_one_hangs(run_suite):
    suite = """
        @distributed(world_size=3, timeout=1)
        def test_it(ddp):
            for size in range(1, 11):
                dist.all_reduce(torch.ones(size))
            if ddp.rank:
                dist.barrier()
            while ddp.rank == 0:
                pass
        """
    with ended_when(
        lambda ranks: all(waits(rank, 11) if rank.rank else rank.collectives_entered == 10 for rank in ranks)
    ):
        result = run_suite(suite)
    result.assert_outcomes(failed=1)
    everywhere = [f"all_reduce #{number} float32[[]{number}[]]" for number in range(1, 11)]
    result.stdout.fnmatch_lines(
        ["*Last collectives call (rank 0)*", "...", *everywhere[-8:], "*-- Last*"], consecutive=True
    )
    result.stdout.fnmatch_lines(
        ["*Last collectives call (ranks 1, 2)*", "...", *everywhere[-7:], "barrier #11*"], consecutive=True
    )


def test_an_output_without_end_is_told_with_both_its_ends(run_suite):
    suite = """
        @distributed(timeout=1)
        def test_it(ddp):
            print("first words")
            while True:
                print("printed and printed " * 50)
        """
    with ended_when(lambda ranks: all("bytes left out" in rank.output.text for rank in ranks)):
        result = run_suite(suite)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*Captured stdout+stderr call (rank 1)*", "first words", "*", "... * bytes left out ..."]
    )


def test_a_rank_that_exits_is_the_cause_and_its_peer_is_not(run_suite):
    result = run_suite("""
        @distributed
        def test_it(ddp):
            dist.all_reduce(torch.ones(3))
            if ddp.rank == 1:
                print("last words", flush=True)
                os._exit(3)
            dist.all_reduce(torch.ones(3))

        @distributed
        def test_next(ddp):
            dist.all_reduce(torch.ones(3))
        """)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            (
                "rank 1 of 2 (gloo, cpu) exited with code 3 before it finished; "
                "last collective entered: all_reduce #1 float32[[]3[]]"
            ),
            "  rank 0: failed because a peer left the group; last collective entered: all_reduce #2 float32[[]3[]]",
            "  rank 0 waited in all_reduce #2 float32[[]3[]], which rank 1 never entered",
            "*Captured stdout+stderr call (rank 1)*",
            "last words",
            "FAILED *::test_it - rank 1 exited with code 3*",
        ]
    )


def test_a_killed_rank_and_a_segfault_are_reported_with_their_signal(run_suite):
    result = run_suite("""
        @distributed
        def test_killed(ddp):
            if ddp.rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()

        @distributed
        def test_segfault(ddp):
            if ddp.rank == 1:
                ctypes.string_at(0)
            dist.barrier()

        @distributed
        def test_next(): dist.barrier()
        """)
    result.assert_outcomes(failed=2, passed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 0 of 2 (gloo, cpu) was killed by SIGKILL; it entered no collective",
            "rank 1 of 2 (gloo, cpu) was killed by SIGSEGV; it entered no collective",
            "*rank 1: Python stacks*",
            "*in test_segfault",
        ]
    )


def test_a_hang_is_reported_with_stacks_and_who_waits_for_whom(run_suite):
    suite = """
        @distributed
        def test_it(ddp):
            if ddp.rank == 1:
                print("hanging", flush=True)
                threading.Event().wait()
            dist.all_reduce(torch.ones(3))

        @distributed(timeout=60)
        def test_next(): dist.barrier()
        """
    with ended_when(lambda ranks: all(hangs(rank) or waits(rank, 1) for rank in ranks)):
        result = run_suite(suite, "--ddp-timeout=1")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 1 of 2 (gloo, cpu) was still running at its deadline of 1 s; it entered no collective",
            (
                "  rank 0: was still running at its deadline of 1 s; it waits in all_reduce #1 float32[[]3[]], "
                "which rank 1 never entered"
            ),
            "*rank 1: Python stacks*",
            "*in test_it",
            "*rank 0: Python stacks*",
            "*in all_reduce",
        ]
    )


def test_a_hang_in_groups_and_messages_names_who_is_missing(run_suite):
    suite = """
        @distributed(world_size=4)
        def test_rows(ddp):
            row = [dist.new_group([0, 1]), dist.new_group([2, 3])][ddp.rank // 2]
            dist.all_reduce(torch.ones(4), group=row)
            if ddp.rank == 3:
                dist.recv(torch.ones(3), 0)
            dist.broadcast(torch.ones(4), ddp.rank // 2 * 2, group=row)
            dist.all_reduce(torch.ones(4))
        """
    result = run_suite(suite, "--ddp-timeout=300")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            (
                "rank 2 of 4 (gloo, cpu) deadlocked: it waits in broadcast #2 float32[[]4[]] with root 2 in group '2' "
                "of ranks 2, 3, which rank 3 never entered: it waits in recv #1 float32[[]3[]] from rank 0, which "
                "waits in all_reduce #1 float32[[]4[]], which ranks 2, 3 never entered"
            ),
            "  ranks 0, 1: deadlocked: they wait in all_reduce #1 float32[[]4[]], which ranks 2, 3 never entered",
            "  rank 3: deadlocked: it waits in recv #1 float32[[]3[]] from rank 0, which never sent it",
        ]
    )


def test_the_deadline_of_the_test_wins(run_suite):
    result = run_suite("@distributed(timeout=3)\ndef test_it(): threading.Event().wait()", "--ddp-timeout=50")
    result.stdout.fnmatch_lines(["* was still running at its deadline of 3 s*"])


def test_all_ranks_failing_alike_are_told_once(run_suite):
    result = run_suite("@distributed\ndef test_it(): assert 1 == 2")
    text = result.stdout.str()
    assert text.count("def test_it(): assert 1 == 2") == 1
    assert "raised AssertionError: assert 1 == 2" in text


def test_ranks_that_disagree_about_skipping_are_a_failure(run_suite):
    """Also when the others wait for the one that skipped: they are not left to hang until the deadline."""
    result = run_suite("""
        @distributed
        def test_it(ddp):
            if ddp.rank == 1:
                pytest.skip("only here")

        @distributed
        def test_waiting(ddp):
            if ddp.rank == 0:
                pytest.skip("not me")
            dist.all_reduce(torch.ones(3))
        """)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "the ranks disagree: rank 0 passed, rank 1 skipped (only here); skip on all ranks or on none",
            "the ranks disagree: rank 0 skipped: not me, while rank 1 continued and waited for it; make *",
            "  rank 1: *; it waits in all_reduce #1 float32[[]3[]], which rank 0 never entered: it has skipped",
            "FAILED *::test_waiting - the ranks disagree: *",
        ]
    )


def test_errors_in_fixtures_are_errors_at_setup(run_suite):
    result = run_suite("""
        @pytest.fixture
        def broken(ddp):
            if ddp.rank == 1:
                raise ValueError("no model")

        @distributed
        def test_it(broken): pass

        @distributed
        def test_missing(nonsense): pass
        """)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at setup of test_it*",
            "rank 1 of 2 (gloo, cpu) raised ValueError: no model",
            "  rank 0: passed",
            "*ERROR at setup of test_missing*",
            "*raised an error: fixture 'nonsense' not found",
        ]
    )


def test_a_subtest_that_fails_on_one_rank_fails_the_test(run_suite):
    result = run_suite("""
        @distributed
        def test_it(ddp, subtests):
            with subtests.test("first"):
                assert ddp.rank == 0
            with subtests.test("second"):
                pass

        @distributed
        def test_next(subtests):
            with subtests.test("fine"):
                pass
        """)
    result.assert_outcomes(failed=2, passed=1)  # as in one process: the subtest, and the test that contains it
    result.stdout.fnmatch_lines(
        [
            "*_ test_it [[]first[]] _*",
            "E * assert 1 == 0",
            "the subtest failed on rank 1 of 2",
            "rank 1 of 2 (gloo, cpu) raised AssertionError in a subtest: assert 1 == 0*",
            "  rank 0: passed",
            "SUBFAILED[[]first[]] *test_it*",
        ]
    )
