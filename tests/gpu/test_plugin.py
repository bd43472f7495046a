"""Whole pytest runs on one GPU: over NCCL each rank has its own; a report says what happened on the device."""

import pytest
import torch
from compiled_suite import compiled

pytestmark = pytest.mark.gpu
ON_GPUS = ("--ddp-device=cuda", "--ddp-world-size=1", "--ddp-require-cuda=1")
NEXT = """
        @distributed
        def test_next(ddp):
            total = torch.ones(3, device=ddp.device)
            dist.all_reduce(total)
            assert total.tolist() == [1, 1, 1]
"""


def test_a_rank_has_its_gpu(run_suite):
    suite = """
        @distributed
        def test_place(ddp):
            assert (ddp.backend, dist.get_backend()) == ("nccl", "nccl")
            assert ddp.device == torch.device("cuda", torch.cuda.current_device())
            total = torch.arange(4.0, device=ddp.device)
            dist.all_reduce(total)
            assert total.tolist() == [0, 1, 2, 3]

        @distributed(device="cpu", world_size=2)
        def test_beside_cpus(ddp):
            total = torch.ones(1)
            dist.all_reduce(total)
            assert (ddp.backend, total.item()) == ("gloo", 2)
    """
    result = run_suite(suite, *ON_GPUS, "-v", "-rA")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["ddp: world size 1, device cuda, *GPU*; ranks in fresh interpreters; *"])


def test_auto_takes_gpus_where_there_are_enough(run_suite):
    size = torch.cuda.device_count() + 1
    suite = f"""
        @pytest.mark.parametrize("again", range(2))
        @distributed(world_size=[1, {size}])
        def test_device(ddp, again):
            assert ddp.device.type == ("cuda" if ddp.world_size == 1 else "cpu")
            dist.barrier()

        @distributed(world_size={size}, device="cuda")
        def test_too_many(): pass
    """
    result = run_suite(suite, "--ddp-device=auto", "-rs")
    result.assert_outcomes(passed=4, skipped=1)
    result.stdout.fnmatch_lines([f"*{size} ranks on cuda need {size} GPUs; this machine has {size - 1}*"])


def test_a_failed_assertion_shows_the_values_on_the_device(run_suite):
    suite = """
        @distributed
        def test_wrong(ddp):
            total = torch.ones(1, device=ddp.device)
            dist.all_reduce(total)
            assert total.item() == 2
    """
    result = run_suite(suite, *ON_GPUS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["rank 0 of 1 (nccl, cuda) raised AssertionError: assert 1.0 == 2"])


def test_memory_left_on_the_device_is_told(run_suite):
    suite = """
        kept = []

        @distributed
        def test_keeps(ddp):
            kept.append(torch.empty(2**22, dtype=torch.uint8, device=ddp.device))

        @distributed
        def test_gives_back(ddp):
            torch.empty(2**22, dtype=torch.uint8, device=ddp.device)
    """
    result = run_suite(suite, *ON_GPUS, "--ddp-leaks=error")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(
        ["*ERROR at teardown of test_keeps*", "*4.0 MiB of CUDA memory still allocated*(--ddp-leaks=error)"]
    )


def test_a_test_draws_from_its_seed_on_the_device(run_suite):
    suite = """
        @pytest.mark.parametrize("again", range(3))
        @distributed
        def test_draws(ddp, again):
            own = torch.Generator(ddp.device).manual_seed(ddp.seed + ddp.rank)
            expected = torch.rand(4, generator=own, device=ddp.device)
            assert torch.equal(torch.rand(4, device=ddp.device), expected)
    """
    run_suite(suite, *ON_GPUS).assert_outcomes(passed=3)


def test_a_group_that_a_fixture_keeps(run_suite):
    suite = """
        @distributed(world_size=1)
        @pytest.fixture(scope="module")
        def model(ddp):
            yield torch.nn.Linear(3, 2, device=ddp.device)

        @pytest.mark.parametrize("step", range(2))
        @distributed
        def test_trains(ddp, model, step):
            wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[ddp.device.index])
            wrapped(torch.ones(1, 3, device=ddp.device)).sum().backward()
            assert model.weight.grad.isfinite().all()
    """
    run_suite(suite, *ON_GPUS).assert_outcomes(passed=2)


def test_a_hang_on_the_device_ends_at_its_deadline(run_suite):
    suite = """
        @distributed
        def test_warms_up(ddp):
            dist.barrier()

        @distributed(timeout=5)
        def test_hangs(ddp):
            torch.cuda._sleep(2 * 10**11)  # a minute and a half
            torch.cuda.synchronize()
    """
    result = run_suite(suite + NEXT, *ON_GPUS)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["rank 0 of 1 (nccl, cuda) was still running at its deadline of 5 s*", "*torch/cuda/__init__.py*in synchronize"]
    )


def test_a_compiled_model_trains_on_gpus(run_suite, tmp_path):
    suite = compiled("cuda", tmp_path)
    result = run_suite(suite, "--ddp-leaks=error", "--ddp-timeout=200", "--ddp-world-size=1")
    result.assert_outcomes(passed=2)
