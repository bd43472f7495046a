"""`@distributed(backend="sim")`: tests run unmodified on simulated ranks, and failures are reported as on real ones."""


def test_a_test_has_on_simulated_ranks_what_it_has_on_real_ones(run_suite):
    """One test function, on real and on simulated ranks; all fixtures and the state of the process are per rank."""
    result = run_suite("""
        import logging, random

        @pytest.fixture(scope="module")
        def wide(ddp):
            kept = []
            yield kept
            assert kept == ["first", "second"]

        @pytest.fixture
        def narrow(ddp, wide, tmp_path):
            (tmp_path / "mine").write_text(str(ddp.rank))
            tensor = torch.full((3,), float(ddp.rank))
            yield tensor
            dist.barrier()
            assert [file.read_text() for file in tmp_path.iterdir()] == [str(ddp.rank)]

        class TestAll:
            @pytest.fixture(autouse=True)
            def keep_rank(self, ddp):
                self.rank = ddp.rank

            @pytest.mark.parametrize("step", ["first", "second"])
            def test_everything(self, ddp, wide, narrow, step, monkeypatch, capsys, caplog, subtests):
                wide.append(step)
                monkeypatch.setenv("MINE", str(ddp.rank))
                print("before", ddp.rank)
                logging.warning("log of %s", ddp.rank)
                torch_number, number = torch.rand(()).item(), random.random()
                dist.all_reduce(narrow)
                half = dist.new_group(range(ddp.world_size // 2))
                dist.barrier()
                assert narrow.tolist() == [sum(range(ddp.world_size))] * 3
                assert self.rank == ddp.rank == dist.get_rank() == int(os.environ["RANK"]) == int(os.environ["MINE"])
                assert capsys.readouterr().out == f"before {ddp.rank}\\n"
                assert caplog.messages == [f"log of {ddp.rank}"]
                torch.manual_seed(ddp.seed + ddp.rank)
                assert torch.rand(()).item() == torch_number
                assert number == random.Random(ddp.seed + ddp.rank).random()
                with subtests.test("a subtest"):
                    assert ddp.world_size in (2, 48)
                assert ddp.shared_path.is_dir() and repr(ddp).startswith(f"<rank {ddp.rank} of")

        @distributed(world_size=48, backend="sim")
        class TestSimulated(TestAll): pass

        @distributed(world_size=2)
        class TestReal(TestAll): pass

        def test_plain(ddp_ranks):
            def total(factor):
                tensor = torch.tensor([factor * dist.get_rank()])
                dist.all_reduce(tensor)
                return tensor.item()

            ranks = ddp_ranks(world_size=32, backend="sim")
            assert ranks.run(total, 2) == [2 * sum(range(32))] * 32
            with ranks.hold(lambda: [dist.get_rank()]) as held:
                assert held.run(lambda one: one[0]) == list(range(32))
            assert "MINE" not in os.environ

        TestAll.__test__ = False
        TestSimulated.__test__ = TestReal.__test__ = True
        """)
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["*executed: 4 (2 ranks, gloo, cpu: 2; 48 ranks, sim, cpu: 2)"])


def test_failures_are_few_and_begin_with_the_cause(run_suite):
    result = run_suite("""
        @distributed(world_size=40, backend="sim")
        def test_differently(ddp):
            print("I am", ddp.rank)
            assert ddp.rank == -1

        @distributed(world_size=40, backend="sim")
        def test_one_fails(ddp):
            if ddp.rank == 7:
                raise ValueError("alone")
            dist.barrier()

        @distributed(world_size=40, backend="sim")
        def test_deadlock(ddp):
            if ddp.rank != 3:
                dist.barrier()

        @distributed(world_size=3, backend="sim")
        def test_mismatch(ddp):
            dist.all_reduce(torch.ones(3 - ddp.rank))

        @distributed(world_size=3, backend="sim")
        def test_lost(ddp):
            if ddp.rank == 1:
                dist.isend(torch.ones(2), 2)

        @distributed(world_size=3, backend="sim")
        def test_skips(ddp):
            if ddp.rank == 1:
                pytest.skip("not here")
            dist.barrier()

        @pytest.mark.xfail(strict=True)
        @distributed(world_size=40, backend="sim")
        def test_expected(ddp):
            assert ddp.rank == -1

        @distributed(world_size=40, backend="sim")
        def test_all_skip(ddp):
            pytest.skip("nowhere")

        @distributed(world_size=40, backend="sim")
        def test_afterwards(ddp):
            dist.barrier()

        @distributed(world_size=2, backend="sim")
        def test_dies(ddp):
            os._exit(3)

        @distributed(world_size=2, backend="sim", timeout=1)
        def test_hangs(ddp):
            threading.Event().wait()
        """)
    result.assert_outcomes(failed=8, passed=1, xfailed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "rank 0 of 40 (sim, cpu) raised AssertionError: assert 0 == -1",
            "  ranks 1-39: raised AssertionError: assert 1 == -1 (on rank 1; the others alike)",
            "E       assert 0 == -1",
            "*Captured stdout+stderr call (rank 0)*",
            "I am 0",
            "ranks 4-39 printed or logged other lines",
            "rank 7 of 40 (sim, cpu) raised ValueError: alone",
            "  ranks 0-6, 8-39: failed because a peer left the group",
            "rank 0 of 40 (sim, cpu) raised Deadlock: * barrier #1 at test_suite.py:*, which rank 3 never entered*",
            "  ranks 1-2, 4-39: were stopped",
            "  rank 3: passed",
            ">           dist.barrier()",
            "E           Deadlock: * barrier #1 at test_suite.py:*, which rank 3 never entered: it has returned",
            "rank 1 of 3 (sim, cpu) raised Mismatch: *all_reduce #1 float32[[]2] *all_reduce #1 float32[[]3] *",
            "rank 1 of 3 (sim, cpu) raised LostMessage: *send #1 float32[[]2] to rank 2 at *, which is never received",
            "the ranks disagree: rank 1 skipped: not here, while ranks 0, 2 continued and waited for it*",
            "rank 0 of 2 (sim, cpu) exited with code 3 before it finished*",
            "rank 0 of 2 (sim, cpu) was still running at its deadline of 1 s*",
        ]
    )
    lines = result.stdout.str()
    assert lines.count("def test_differently") == lines.count("def test_one_fails") == 1
    assert lines.count("def test_deadlock") == 1


def test_hypothesis_draws_arguments_and_schedules(run_given):
    result = run_given("""
        from pytest_ddp.strategies import schedules

        def receive_in_order(ddp):
            if ddp.rank:
                dist.send(torch.tensor([ddp.rank]), 0)
            else:
                received = torch.zeros(2, dtype=torch.int64)
                sources = [dist.recv(received[i : i + 1]) for i in range(2)]
                assert sources == [1, 2]

        @distributed(world_size=3, backend="sim", schedule=schedules())
        def test_drawn(ddp):
            receive_in_order(ddp)

        @distributed(world_size=3, backend="sim", schedule=schedules())
        @given(x=st.integers(0, 100))
        @fast
        def test_both(ddp, x):
            if x > 37:
                receive_in_order(ddp)

        @distributed(world_size=3, backend="sim", schedule="0:2")
        def test_fixed(ddp):
            receive_in_order(ddp)

        @distributed(world_size=3, backend="sim")
        def test_default(ddp):
            receive_in_order(ddp)

        @distributed(world_size=20, backend="sim")
        @given(x=st.integers())
        @fast
        def test_given(ddp, x):
            total = torch.tensor(x)
            dist.all_reduce(total.clamp(-1000, 1000))
            note(f"x is {x}")
            assert x < 10 or ddp.rank < 19
        """)
    result.assert_outcomes(failed=4, passed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 0 of 3 (sim, cpu) raised AssertionError: assert [[]2, 1] == [[]1, 2]",
            "  schedule: --ddp-schedule=0:2 replays it",
            "E * test_drawn(",
            "E * schedule='0:2',",
            "rank 0 of 3 (sim, cpu) raised AssertionError: assert [[]2, 1] == [[]1, 2]",
            "  schedule: --ddp-schedule=0:2 replays it",
            "E * x=38,",
            "E * schedule='0:2'",
            "rank 0 of 3 (sim, cpu) raised AssertionError: assert [[]2, 1] == [[]1, 2]",
            "rank 19 of 20 (sim, cpu) raised AssertionError: assert (10 < 10 *",
            "E * x=10,",
            "E * x is 10",
        ]
    )


def test_an_option_replays_a_schedule_and_another_one_makes_all_ranks_simulated(run_suite):
    result = run_suite(
        """
        from pytest_ddp.strategies import schedules

        first = []

        @distributed(world_size=3, schedule=schedules())
        def test_replayed(ddp):
            first.append(ddp.rank)
            dist.barrier()
            assert first == [2, 0, 1]
        """,
        "--ddp-backend=sim",
        "--ddp-schedule=0:2",
    )
    result.assert_outcomes(passed=1)


def test_what_simulated_ranks_cannot_do_is_refused(run_suite):
    result = run_suite("""
        @distributed(backend="sim", device="cuda")
        def test_cuda(ddp): ...

        @distributed(backend="sim", nodes=1)
        def test_nodes(ddp): ...

        @distributed(backend="sim", observe=True)
        def test_observe(ddp): ...

        @distributed(backend="sim", group=False)
        def test_group(ddp): ...

        @distributed(schedule="0:1")
        def test_schedule(ddp): ...

        @distributed(reduction="ring")
        def test_not_simulated(ddp): ...

        @distributed(backend="sim")
        def test_breakpoint(ddp):
            breakpoint()
        """)
    result.assert_outcomes(errors=6, failed=1)
    result.stdout.fnmatch_lines(
        [
            "simulated ranks have tensors on CPU only: remove device='cuda', or choose another backend than \"sim\"",
            "simulated ranks are threads of one process, on one node: remove nodes=1, *",
            "simulated ranks are not observed: a simulation itself checks every operation: remove observe=True, *",
            "simulated ranks have the default group that the plugin makes: remove group=False, *",
            'schedule=... works on simulated ranks only: write backend="sim", or remove schedule',
            'reduction=... works on simulated ranks only: write backend="sim", or remove reduction',
            "rank 0 of 2 (sim, cpu) raised *UsageError: breakpoint() on a simulated rank: *",
        ]
    )


def test_a_sum_shows_in_which_order_it_adds(run_suite):
    result = run_suite("""
        class TestSum:
            @pytest.mark.parametrize("expected", [
                pytest.param(1.0, marks=distributed(reduction="rank_order")),
                pytest.param(0.0, marks=distributed(reduction="tree")),
                pytest.param(1.0),
            ])
            @distributed(world_size=4, backend="sim")
            def test_order(self, ddp, expected):
                total = torch.tensor([1e8, 1.0, -1e8, 1.0][ddp.rank])
                dist.all_reduce(total)
                assert total.item() == expected

        def test_plain(ddp_ranks):
            def total():
                total = torch.tensor([1e8, 1.0, -1e8, 1.0][dist.get_rank()])
                dist.all_reduce(total)
                return total.item()

            assert ddp_ranks(world_size=4, backend="sim", reduction="tree").run(total) == [0.0] * 4
            assert ddp_ranks(world_size=4, backend="sim", reduction="ring").run(total) == [1.0] * 4
        """)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*4 ranks, sim, cpu, reduction tree: 1*"])


def test_faults_are_written_or_drawn(run_given):
    result = run_given("""
        from pytest_ddp.strategies import crashes
        from pytest_ddp.planning.faults import Crash

        @distributed(world_size=3, backend="sim", faults=[Crash(rank=2, at="all_reduce#2")])
        def test_survivors(ddp):
            dist.all_reduce(torch.ones(2))
            with pytest.raises(RuntimeError, match="Connection closed by peer"):
                dist.all_reduce(torch.ones(2))

        @distributed(world_size=3, backend="sim", faults=crashes(3, ["all_reduce#1", "all_reduce#2"]))
        @given(x=st.integers(0, 3))
        @fast
        def test_drawn(ddp, x):
            dist.barrier()
            if x > 1:
                dist.all_reduce(torch.ones(2))

        @distributed(faults=[Crash(rank=2, at="all_reduce#2")], device="cpu", observe=True)
        def test_afterwards(ddp): ...
        """)
    result.assert_outcomes(passed=1, failed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "rank ? of 3 (sim, cpu) failed because a peer left the group",
            "  rank 0: was killed by a fault",
            "E * x=2,",
            "E * faults=Crash(start=0, rank=0, at='all_reduce#2')",
        ]
    )
