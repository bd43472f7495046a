"""Messages that a passing test leaves unfinished are told, without `observe=True`."""


def test_messages_that_were_not_finished_are_reported(run_suite):
    result = run_suite("""
        HANDLES = []

        @distributed(world_size=2)
        def test_right(ddp):
            for number in range(3):
                if ddp.rank == 0:
                    dist.send(torch.ones(3), dst=1)
                    dist.isend(torch.ones(3), dst=1).wait()
                else:
                    dist.recv(torch.ones(3))
                    dist.irecv(torch.ones(3), src=0).wait()
            operations = [dist.P2POp(dist.isend, torch.ones(2), 1 - ddp.rank)]
            operations += [dist.P2POp(dist.irecv, torch.ones(2), 1 - ddp.rank)]
            for work in dist.batch_isend_irecv(operations):
                work.wait()

        @distributed(world_size=2)
        def test_never_received(ddp):
            if ddp.rank == 0:
                dist.isend(torch.ones(3), dst=1)

        @distributed(world_size=2)
        def test_never_waited_for(ddp):
            if ddp.rank == 0:
                HANDLES.append(dist.isend(torch.ones(3), dst=1))
            else:
                dist.recv(torch.ones(3), src=0)

        @distributed(world_size=2)
        def test_received_in_part(ddp):
            if ddp.rank == 0:
                dist.send(torch.ones(3), dst=1)
            else:
                dist.recv(torch.ones(5), src=0)
        """)
    result.assert_outcomes(passed=4, warnings=3)
    received = "rank 1 called recv #1 float32[[]5] from rank 0"
    sent = "send #1 float32[[]3] to rank 1"
    result.stdout.fnmatch_lines_random(
        [
            f"*test_never_received left behind: {sent}, which rank 1 never received*",
            f"*test_never_waited_for left behind: {sent}, which was never waited for*",
            f"*test_received_in_part left behind: {sent}, where {received}; a send and its receive must agree in size*",
        ]
    )
