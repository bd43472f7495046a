"""`observe=True` on tests, fixtures and `ddp_ranks`: what `ddp.collectives` records, and when it starts again."""


def test_observed_and_plain_tests_alternate_on_the_same_ranks(run_suite):
    result = run_suite("""
        ids = []

        @distributed(world_size=2, observe=True)
        def test_observed(ddp):
            dist.all_reduce(torch.ones(3))
            (entry,) = ddp.collectives
            assert (entry.op, entry.sequence, entry.shapes, entry.group) == ("all_reduce", 1, ((3,),), "0")
            assert entry.line.startswith("test_suite.py:")
            assert entry.launched.time < entry.waited.time < entry.completed.time
            ids.append(os.getpid())

        @distributed(world_size=2)
        def test_plain(ddp):
            assert type(ddp.group) is dist.ProcessGroup
            assert torch.autograd._engine_run_backward is torch.autograd.graph._engine_run_backward
            assert torch.autograd._engine_run_backward.__module__ == "torch.autograd.graph"
            assert dist.distributed_c10d.ProcessGroup is dist.ProcessGroup
            ids.append(os.getpid())

        @distributed(world_size=2, observe=True)
        def test_observed_again(ddp):
            assert not ddp.collectives
            dist.all_reduce(torch.ones(3))
            assert [entry.sequence for entry in ddp.collectives] == [1]
            assert [event.time for event in ddp.collectives.events] == [1, 2, 3]
            assert ids == [os.getpid()] * 2
        """)
    result.assert_outcomes(passed=3)


def test_an_observed_group_has_the_same_attributes(run_suite):
    result = run_suite("""
        @distributed(world_size=2, observe=True)
        def test_it(ddp):
            assert dist.get_backend() == ddp.backend == "gloo"
            assert isinstance(ddp.group, dist.ProcessGroup)
            assert (dist.get_rank(), ddp.group.rank(), ddp.group.size()) == (ddp.rank, ddp.rank, 2)
            assert ddp.group.name() == "gloo"
            assert ddp.group.get_group_store() is not None
            assert ddp.group.bound_device_id is None
            assert dist.get_process_group_ranks(ddp.group) == [0, 1]
        """)
    result.assert_outcomes(passed=1)


def test_without_observe_the_error_says_what_to_write(run_suite):
    result = run_suite("""
        @distributed(world_size=2)
        def test_it(ddp):
            ddp.collectives
        """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*UsageError: this test's collectives are not observed*@distributed(observe=True)*"])


def test_observe_must_be_a_bool(run_suite):
    result = run_suite("""
        @pytest.mark.distributed(observe=1)
        def test_marked(): ...
        """)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*takes True or False; got 1*"])


def test_the_record_includes_setup_and_can_be_cleared(run_suite):
    result = run_suite("""
        @pytest.fixture
        def greeted():
            dist.barrier()

        @distributed(world_size=2, observe=True)
        def test_it(ddp, greeted):
            kept = ddp.collectives
            assert [entry.op for entry in kept] == ["barrier"]
            kept.clear()
            dist.broadcast(torch.ones(2), 0)
            assert [entry.op for entry in ddp.collectives] == [entry.op for entry in kept] == ["broadcast"]
            assert kept[0].sequence == 2
            assert list(kept[:1]) == list(kept)
            assert repr(kept).startswith("<1 operations:\\n  broadcast #2 float32[2] (test_suite.py:")
        """)
    result.assert_outcomes(passed=1)


def test_a_fixture_observes_the_tests_that_use_it(run_suite):
    result = run_suite("""
        @distributed(world_size=2, observe=True)
        @pytest.fixture(scope="module")
        def group(ddp):
            return dist.new_group([0, 1])

        @distributed
        def test_first(ddp, group):
            dist.barrier(group)
            assert [(e.op, e.sequence) for e in ddp.collectives if e.group == group.group_name] == [("barrier", 1)]

        @distributed
        def test_second(ddp, group):
            dist.barrier(group)
            assert [(e.op, e.sequence) for e in ddp.collectives] == [("barrier", 2)]

        @distributed(observe=False)
        def test_against(group): ...
        """)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*the fixture 'group' needs observe=True, but the test asks for observe=False*"])


def test_remote_calls_can_be_observed(run_suite):
    result = run_suite("""
        from pytest_ddp import observed

        def work():
            dist.all_reduce(torch.ones(2))
            return list(observed.collectives())

        class Counter:
            def step(self):
                dist.barrier()
                return [entry.sequence for entry in observed.collectives()]

        def test_it(ddp_ranks):
            ours = ddp_ranks(world_size=2, observe=True)
            for _ in range(2):
                for (entry,) in ours.run(work):
                    assert (entry.op, entry.sequence, entry.ranks) == ("all_reduce", 1, (0, 1))
            with pytest.raises(Exception, match="are not observed"):
                ddp_ranks(world_size=2).run(work)
            with ours.hold(Counter) as held:
                assert [held.run(Counter.step)[0] for _ in range(3)] == [[1], [2], [3]]
        """)
    result.assert_outcomes(passed=1)


def test_every_example_has_its_own_record(run_given):
    result = run_given("""
        @distributed(world_size=2, observe=True)
        @fast
        @given(times=st.integers(0, 3))
        def test_it(ddp, times):
            for _ in range(times):
                dist.barrier()
            assert len(ddp.collectives) == times
        """)
    result.assert_outcomes(passed=1)


def test_events_have_the_names_of_parameters(run_suite):
    result = run_suite("""
        from pytest_ddp.observed import BackwardBegan, BackwardReturned, GradientReady

        @distributed(world_size=2, observe=True)
        def test_it(ddp):
            model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1, bias=False))
            ddp.collectives.name(model)
            scale = torch.ones(2, requires_grad=True)
            (model(torch.ones(2)) * scale).sum().backward()
            ready = [e.parameter for e in ddp.collectives.events if isinstance(e, GradientReady)]
            assert sorted(ready) == ["0.bias", "0.weight", "1.weight", "parameter [2]"]
            ddp.collectives.clear()
            torch.autograd.grad(model(torch.ones(2)).sum(), list(model.parameters()))
            model(torch.ones(2)).sum().backward(inputs=[model[1].weight])
            began, returned, again, gradient, end = ddp.collectives.events
            assert (began.expected, again.expected, gradient.parameter) == (0, 1, "1.weight")
            assert (returned.backward, end.backward) == (2, 3)
        """)
    result.assert_outcomes(passed=1)


def test_hooks_on_parameters_see_their_gradient_counted(run_suite):
    result = run_suite("""
        @distributed(world_size=2, observe=True)
        def test_it(ddp):
            model = torch.nn.Sequential(*[torch.nn.Linear(2, 2, bias=False) for _ in range(3)])
            works = []
            def reduce(gradient):
                works.append(dist.all_reduce(gradient, async_op=True))
            for parameter in model.parameters():
                parameter.register_hook(reduce)
            loss = model(torch.ones(2)).sum()
            loss.backward()
            for work in works:
                work.wait()
            assert [e.launched.ready for e in ddp.collectives] == [1, 2, 3]
            assert all(e.launched.backward == 1 and e.launched.expected == 3 for e in ddp.collectives)
            assert all(e.waited.backward is None and e.asynchronous for e in ddp.collectives)
            assert len(model[0].weight._backward_hooks) == 1

        @distributed(world_size=2, observe=True)
        def test_after_accumulation(ddp):
            model = torch.nn.Sequential(*[torch.nn.Linear(2, 2, bias=False) for _ in range(3)])
            def reduce(parameter):
                dist.all_reduce(parameter.grad)
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(reduce)
            model(torch.ones(2)).sum().backward()
            assert [(e.launched.ready, e.waited.backward) for e in ddp.collectives] == [(1, 1), (2, 1), (3, 1)]
            lines = {e.line for e in ddp.collectives}
            assert len(lines) == 1
        """)
    result.assert_outcomes(passed=2)


def test_operations_of_cpp_have_the_line_of_backward(run_suite):
    result = run_suite("""
        @distributed(world_size=2, observe=True)
        def test_it(ddp):
            wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
            ddp.collectives.clear()
            here = sys._getframe().f_lineno + 1
            wrapped(torch.ones(2)).sum().backward()
            (entry,) = ddp.collectives
            assert (entry.line, entry.called) == (f"test_suite.py:{here}", "backward")
        """)
    result.assert_outcomes(passed=1)


def test_a_killed_rank_reports_its_last_collective(run_suite):
    """The flight recorder still works, because the real groups write to it."""
    result = run_suite("""
        @distributed(world_size=2, observe=True)
        def test_it(ddp):
            dist.all_reduce(torch.ones(5))
            if ddp.rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()
        """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["rank 0 of 2 (gloo, cpu) was killed by SIGKILL; last collective entered: all_reduce #1 float32?5?*"]
    )


def test_an_error_of_gloo_is_not_changed(run_suite):
    result = run_suite("""
        def wrong():
            with pytest.raises(Exception) as caught:
                dist.broadcast(torch.ones(2), src=5)
            with pytest.raises(Exception) as other:
                dist.all_reduce(torch.ones(2, dtype=torch.float32).to_sparse(), op=dist.ReduceOp.MAX)
            return str(caught.value).splitlines()[0], str(other.value).splitlines()[0]

        def test_it(ddp_ranks):
            assert ddp_ranks(observe=True).run(wrong) == ddp_ranks().run(wrong)
        """)
    result.assert_outcomes(passed=1)
