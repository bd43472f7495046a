"""On GPUs an observed group delegates to NCCL, or to gloo with tensors on the device."""

import pytest

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


@pytest.mark.gpu
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
