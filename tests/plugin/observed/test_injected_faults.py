"""Crashes, delays and partitions of a plan on real ranks."""


def test_a_delay_and_a_partition_on_real_ranks(run_suite):
    result = run_suite("""
        from pytest_ddp.simulated.faults import Crash, Delay, Partition, injected

        def add_up():
            total = torch.ones(2)
            for _ in range(4):
                dist.all_reduce(total)
            return total.tolist()

        @distributed(world_size=2, observe=True)
        def test_delay(ddp):
            with injected([Delay(rank=1, at="all_reduce#2", turns=2)]):
                assert add_up() == [16, 16]

        @distributed(world_size=2, observe=True)
        def test_partition(ddp):
            with injected([Partition(((0,), (1,)), at="all_reduce#3", until="all_reduce#4")]):
                with pytest.raises(RuntimeError, match=f"the network between rank {ddp.rank} and ranks .* is down"):
                    add_up()
            assert add_up() == [16, 16]
    """)
    result.assert_outcomes(passed=2)


def test_a_crash_on_real_ranks_and_what_it_cannot_do(run_suite):
    result = run_suite("""
        from pytest_ddp.simulated.faults import Corrupt, Crash, injected

        @distributed(world_size=2, observe=True)
        def test_crash(ddp):
            with injected([Crash(rank=1, at="all_reduce#2")]):
                for _ in range(3):
                    dist.all_reduce(torch.ones(2))

        @distributed(world_size=2, observe=True)
        def test_corrupt(ddp):
            with injected([Corrupt(rank=1, at="all_reduce#2")]):
                pass
    """)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*rank 1*SIGKILL*", "*real ranks can crash, be late, and lose one another; only sim*"])
