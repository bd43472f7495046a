"""`ddp.collectives.gate(schedule)` in tests, and in fixtures for the whole of a test."""


def test_a_gate_in_a_test_and_one_in_a_fixture(run_suite):
    result = run_suite("""
        from pytest_ddp.observed import HoldUntilBackward, Overlap, collectives

        @pytest.fixture
        def held(ddp):
            with ddp.collectives.gate(HoldUntilBackward()):
                yield

        def average(parameter):
            works.append((dist.all_reduce(parameter.grad, async_op=True), parameter.grad))

        works = []

        @distributed(world_size=2, observe=True)
        def test_held(ddp, held):
            model = torch.nn.Linear(2, 2)
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(average)
            model(torch.ones(1, 2)).sum().backward()
            assert all(gradient.isnan().all() for _, gradient in works)
            assert len(ddp.collectives.unawaited) == 2
            for work, gradient in works:
                work.wait()
                assert gradient.tolist() == (torch.ones_like(gradient) * 2).tolist()
            (verdict,) = ddp.collectives.overlap
            assert verdict.verdict is Overlap.OVERLAPPED
            assert verdict.at.startswith("test_suite.py:")

        @distributed(world_size=2, observe=True)
        def test_not_held(ddp):
            dist.all_reduce(tensor := torch.ones(2), async_op=True).get_future().wait()
            assert tensor.tolist() == [2, 2]

        def blocks():
            weight = torch.nn.Parameter(torch.ones(2))
            other = torch.nn.Parameter(torch.ones(2))
            weight.register_hook(dist.all_reduce)
            with collectives().gate(HoldUntilBackward()):
                (weight + other).sum().backward()

        def test_on_ranks(ddp_ranks):
            with pytest.raises(Exception, match="blocks inside backward at .*test_suite.py:"):
                ddp_ranks(world_size=2, observe=True).run(blocks)
        """)
    result.assert_outcomes(passed=3)


def test_blocking_inside_backward_raises_with_line_and_remedy(run_suite):
    result = run_suite("""
        from pytest_ddp.observed import HoldUntilBackward

        @distributed(world_size=2, observe=True)
        def test_it(ddp):
            model = torch.nn.Linear(2, 2)
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(lambda leaf: dist.all_reduce(leaf.grad))
            with ddp.collectives.gate(HoldUntilBackward()):
                model(torch.ones(1, 2)).sum().backward()
        """)
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines_random(
        [
            (
                r".*BlocksInsideBackward: blocks inside backward at test_suite.py:\d+: all_reduce #1 float32\[.*\] "
                r"\(test_suite.py:\d+\) waits there for the other ranks, with 1 of 2 gradients ready; "
                r"HoldUntilBackward\(\) completes no operation before all are ready; pass async_op=True, and wait "
                r"after backward has returned, or in a callback that is queued for its end"
            ),
            r".*rank \d: raised .*BlocksInsideBackward: blocks inside backward at test_suite.py:.*",
        ]
    )
