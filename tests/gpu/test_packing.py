"""Under xdist small tests are packed on the GPUs: each holds as many as it has ranks, and no two hold the same."""

import pytest
import torch

GPUS = max(1, torch.cuda.device_count())
pytestmark = pytest.mark.gpu
ALONE = """
        from pathlib import Path

        def alone(request, gpus):
            return [request.path.with_name(f"on-{gpu}") for gpu in gpus]

        @pytest.mark.parametrize("number", range(6))
        @distributed(world_size=1)
        def test_small(ddp, number, request):
            (own,) = alone(request, [ddp.device.index])
            own.touch(exist_ok=False)
            dist.all_reduce(torch.ones(1, device=ddp.device))
            torch.cuda.synchronize()
            own.unlink()
"""


def test_workers_share_the_gpus(run_suite):
    run_suite(ALONE, "--ddp-device=cuda", "-n", "2").assert_outcomes(passed=6)


def test_a_test_on_all_gpus_waits_for_the_small_ones(run_suite):
    suite = f"""
        @pytest.mark.parametrize("number", range(2))
        @distributed(world_size={GPUS})
        def test_large(ddp, number, request):
            (own,) = alone(request, [ddp.device.index])
            own.touch(exist_ok=False)
            dist.barrier()
            own.unlink()
    """
    run_suite(ALONE + suite, "--ddp-device=cuda", "-n", "3").assert_outcomes(passed=8)


def test_ranks_that_share_a_gpu_hold_it_together(run_suite):
    suite = f"""
        @pytest.mark.parametrize("number", range(2))
        @distributed(world_size={GPUS + 1}, backend="gloo")
        def test_shared(ddp, number, request):
            own = alone(request, range({GPUS}))
            if ddp.rank == 0:
                for each in own:
                    each.touch(exist_ok=False)
            dist.all_reduce(torch.ones(1, device=ddp.device))
            if ddp.rank == 0:
                for each in own:
                    each.unlink()
    """
    run_suite(ALONE + suite, "--ddp-device=cuda", "-n", "3").assert_outcomes(passed=8)


def test_small_tests_run_on_different_gpus_at_once(run_suite):
    """Each of two tests waits for the other, so that both are on a GPU at the same time."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    suite = """
        import time

        @pytest.mark.parametrize("number", range(2))
        @distributed(world_size=1)
        def test_together(ddp, number, request):
            request.path.with_name(f"ready-{number}").write_text(str(ddp.device.index))
            other = request.path.with_name(f"ready-{1 - number}")
            while not (other.exists() and other.read_text()):
                time.sleep(0.01)
            assert int(other.read_text()) != ddp.device.index
    """
    run_suite(suite, "--ddp-device=cuda", "-n", "2").assert_outcomes(passed=2)
