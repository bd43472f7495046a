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


def test_messages_that_are_finished_are_no_leak(run_suite):
    result = run_suite(
        """
        @distributed(world_size=2)
        def test_from_any_rank(ddp):
            dist.send(torch.ones(3), dst=1) if ddp.rank == 0 else dist.recv(torch.ones(3))
            dist.barrier()

        @pytest.fixture
        def received(ddp):
            yield
            dist.recv(torch.ones(3), src=0) if ddp.rank == 1 else KEPT[0].wait()
            dist.barrier()

        @distributed(world_size=2)
        def test_received_by_a_fixture(ddp, received):
            if ddp.rank == 0:
                KEPT.append(dist.isend(torch.ones(3), dst=1))

        KEPT = []

        @distributed(world_size=2)
        def test_makes_its_group_anew(ddp):
            for round in range(2):
                dist.destroy_process_group()
                url = f"file://{ddp.shared_path}/store{round}"
                dist.init_process_group("gloo", init_method=url, rank=1 - ddp.rank, world_size=2)
                for _ in range(2 - round):
                    if dist.get_rank() == 0:
                        dist.isend(torch.ones(3), dst=1).wait()
                    else:
                        dist.recv(torch.ones(3), src=0)
            dist.destroy_process_group()

        @distributed(world_size=2)
        def test_many(ddp):
            for _ in range(2000):
                dist.send(torch.ones(1), dst=1) if ddp.rank == 0 else dist.recv(torch.ones(1), src=0)
        """,
        "--ddp-leaks=error",
    )
    result.assert_outcomes(passed=4)
