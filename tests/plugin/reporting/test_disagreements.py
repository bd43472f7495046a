"""Ranks that call operations which do not match, without `observe=True`: the first line of the report says so."""


def test_the_first_line_names_the_operation_on_which_ranks_disagree(run_suite):
    result = run_suite(
        """
        @distributed(world_size=3)
        def test_shape(ddp):
            dist.all_reduce(torch.ones(4 if ddp.rank == 1 else 8))
            dist.barrier()

        @distributed(world_size=3)
        def test_order(ddp):
            dist.all_reduce(torch.ones(4))
            if ddp.rank == 1:
                dist.broadcast(torch.ones(8), 0)
            else:
                dist.all_reduce(torch.ones(8))
            dist.barrier()

        @distributed(world_size=2)
        def test_message(ddp):
            if ddp.rank == 0:
                dist.send(torch.ones(5), dst=1)
            else:
                dist.recv(torch.ones(3), src=0)
        """
    )
    result.assert_outcomes(failed=3)
    disagree = "the ranks disagree: "
    order = "all ranks of a group must call the same collectives in the same order"
    shapes = "ranks 0, 2 called all_reduce #1 float32[[]8], rank 1 called all_reduce #1 float32[[]4]"
    operations = "ranks 0, 2 called all_reduce #2 float32[[]8], rank 1 called broadcast #2 float32[[]8] with root 0"
    messages = "rank 0 called send #1 float32[[]5] to rank 1, rank 1 called recv #1 float32[[]3] from rank 0"
    result.stdout.fnmatch_lines(
        [
            "*_ test_shape _*",
            "",
            f"{disagree}{shapes}; all ranks must call it with the same shape",
            "  rank*: was killed by SIGABRT; last collective entered: all_reduce #1 float32[[]*]",
            "*_ test_order _*",
            "",
            f"{disagree}{operations}; {order}",
            "*_ test_message _*",
            "",
            f"{disagree}{messages}; a send and its receive must agree in size",
            "FAILED *::test_order - the ranks disagree: *",
        ]
    )


def test_a_receive_from_oneself_is_explained(run_suite):
    result = run_suite("""
        @distributed(world_size=2)
        def test_it(ddp):
            dist.recv(torch.ones(3), src=ddp.rank)
        """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["  hint: over gloo, a rank cannot send to itself or receive from itself: *ddp.rank"])


def test_what_a_rank_raises_by_itself_comes_before_a_disagreement(run_suite):
    result = run_suite("""
        @distributed(world_size=2)
        def test_it(ddp):
            dist.all_reduce(torch.ones(2)) if ddp.rank == 0 else None
            assert ddp.rank == 0, "mine"
        """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["rank 1 of 2 (gloo, cpu) raised AssertionError: mine*"])
