"""On GPUs an observed group delegates to NCCL, or to gloo with tensors on the device."""

import pytest
import torch

GPUS = max(1, torch.cuda.device_count())
pytestmark = pytest.mark.gpu
WORLDS = [pytest.param("nccl", GPUS, id="nccl"), pytest.param("gloo", 2, id="gloo")]
TRAINING = """
    from pytest_ddp.observed import collectives, current

    def train():
        device = torch.device("cuda", torch.cuda.current_device())
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(device)
        wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device.index], bucket_cap_mb=0.0001)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            wrapped(torch.randn(4, 8, device=device)).pow(2).mean().backward()
            optimizer.step()
        total = torch.ones(3, device=device)
        dist.all_reduce(total, async_op=True).wait()
        if dist.get_backend() == "nccl":  # gloo coalesces on CPUs alone
            with dist._coalescing_manager(async_ops=True) as manager:
                dist.all_reduce(total)
                dist.all_reduce(total)
            manager.wait()
            with dist._coalescing_manager(device=device):
                dist.broadcast(total, src=0)
                dist.reduce(total, dst=0)
        dist.barrier()
        return [tensor.detach().cpu() for tensor in (*model.parameters(), total)], (
            list(collectives()) if current.is_observed() else []
        )
"""


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_training_on_gpus_gives_the_same_numbers_and_a_record(run_suite, backend):
    result = run_suite(
        TRAINING
        + f"""
    def test_it(ddp_ranks):
        size = min(2, torch.cuda.device_count())
        options = dict(world_size=size, backend="{backend}", device="cuda")
        plain = ddp_ranks(**options).run(train)
        observed = ddp_ranks(**options, observe=True).run(train)
        for (expected, _), (found, entries) in zip(plain, observed):
            assert all(torch.equal(*pair) for pair in zip(expected, found))
            assert [entry for entry in entries if not entry.completed] == []
            inside = [entry for entry in entries if entry.launched.backward]
            assert len(set(entry.launched.backward for entry in inside)) == 3
            assert [entry for entry in inside if entry.waited.backward != entry.launched.backward] == []
            assert "barrier" in [entry.op for entry in entries]
"""
    )
    result.assert_outcomes(passed=1)


def on_gpus(backend, size):
    return "--ddp-device=cuda", f"--ddp-backend={backend}", f"--ddp-world-size={size}"


@pytest.mark.parametrize(("backend", "size"), WORLDS)
def test_a_gate_holds_results_on_the_device_until_they_are_waited_for(run_suite, backend, size):
    result = run_suite(
        """
        from pytest_ddp.observed import HoldUntilBackward, Overlap

        works = []

        def average(parameter):
            works.append((dist.all_reduce(parameter.grad, async_op=True), parameter.grad))

        @distributed(observe=True)
        def test_held(ddp):
            model = torch.nn.Linear(2, 2).to(ddp.device)
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(average)
            with ddp.collectives.gate(HoldUntilBackward()):
                model(torch.ones(1, 2, device=ddp.device)).sum().backward()
                assert all(gradient.is_cuda and gradient.isnan().all() for _, gradient in works)
                for work, gradient in works:
                    work.wait()
                    assert gradient.eq(ddp.world_size).all()
            (verdict,) = ddp.collectives.overlap
            assert verdict.verdict is Overlap.OVERLAPPED

        @distributed(observe=True)
        def test_forgotten(ddp):
            value = torch.ones(2, device=ddp.device)
            with ddp.collectives.gate(HoldUntilBackward()):
                dist.all_reduce(value, async_op=True)
                assert value.isnan().all()
        """,
        *on_gpus(backend, size),
    )
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize(("backend", "size"), WORLDS)
def test_blocking_inside_backward_raises_on_the_device_too(run_suite, backend, size):
    result = run_suite(
        """
        from pytest_ddp.observed import HoldUntilBackward

        @distributed(observe=True)
        def test_blocks(ddp):
            model = torch.nn.Linear(2, 2).to(ddp.device)
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(lambda leaf: dist.all_reduce(leaf.grad))
            with ddp.collectives.gate(HoldUntilBackward()):
                model(torch.ones(1, 2, device=ddp.device)).sum().backward()
        """,
        *on_gpus(backend, size),
    )
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines_random([r".*BlocksInsideBackward: blocks inside backward at test_suite.py:.*"])
