"""What breaks on one rank's GPU is that rank's failure; other ranks and the next test are unharmed."""

import pytest
import torch

GPUS = max(1, torch.cuda.device_count())
pytestmark = pytest.mark.gpu
WORLDS = [
    pytest.param(("gloo", 2), id="gloo-2"),  # both on one GPU, if there is one
    pytest.param(("nccl", GPUS), id="nccl"),
]
NEXT = """
        @distributed
        def test_next(ddp):
            total = torch.ones(3, device=ddp.device)
            dist.all_reduce(total)
            assert total.tolist() == [ddp.world_size] * 3
"""


@pytest.fixture(params=WORLDS)
def options(request):
    """The options of an inner run: backend and world size; and the beginning of the report of its last rank."""
    backend, size = request.param
    return (
        ["--ddp-device=cuda", f"--ddp-backend={backend}", f"--ddp-world-size={size}"],
        f"rank {size - 1} of {size} ({backend}, cuda)",
    )


@pytest.fixture
def two_gpus():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")


def test_an_assertion_in_a_kernel_on_one_rank(run_suite, options):
    """After it every call to CUDA fails in that process; the others wait for it in a collective."""
    suite = """
        @distributed
        def test_breaks(ddp):
            dist.barrier()
            if ddp.rank == ddp.world_size - 1:
                torch.ones(2, device=ddp.device)[torch.tensor([5], device=ddp.device)]
                torch.cuda.synchronize()
            dist.all_reduce(torch.ones(1, device=ddp.device))
            torch.cuda.synchronize()
    """
    arguments, last = options
    result = run_suite(suite + NEXT, *arguments)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"{last} raised *Error: CUDA error: device-side assert triggered*"])


def test_one_rank_out_of_memory(run_suite, options):
    suite = """
        @distributed
        def test_takes_too_much(ddp):
            dist.barrier()
            if ddp.rank == ddp.world_size - 1:
                torch.empty(2**50, dtype=torch.uint8, device=ddp.device)
            dist.all_reduce(torch.ones(1, device=ddp.device))
            torch.cuda.synchronize()
    """
    arguments, last = options
    result = run_suite(suite + NEXT, *arguments)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"{last} raised *OutOfMemoryError: CUDA out of memory*"])


def test_memory_that_one_rank_filled_is_there_for_the_next_test(run_suite):
    """A rank that ends gives its memory back, whatever it held: the next test can take as much again."""
    suite = """
        kept = []

        @pytest.mark.parametrize("again", range(2))
        @distributed
        def test_fills(ddp, again):
            _, total = torch.cuda.mem_get_info()
            kept.append(torch.empty(total * 6 // 10, dtype=torch.uint8, device=ddp.device))
    """
    result = run_suite(suite, "--ddp-device=cuda", "--ddp-world-size=1", "--ddp-leaks=error")
    result.assert_outcomes(passed=2, errors=2)
    result.stdout.fnmatch_lines(["*MiB of CUDA memory still allocated*(--ddp-leaks=error)"])


def test_no_memory_of_a_gpu_is_held_after_a_run(run_suite):
    """Ranks end with their run, and their contexts with them."""
    torch.cuda.init()
    before, _ = torch.cuda.mem_get_info(0)
    suite = """
        @distributed
        def test_holds(ddp):
            assert torch.ones(2**28, dtype=torch.uint8, device=ddp.device).sum().item() == 2**28
    """
    run_suite(suite, "--ddp-device=cuda", "--ddp-backend=gloo", "--ddp-world-size=2").assert_outcomes(passed=1)
    after, _ = torch.cuda.mem_get_info(0)
    assert before - after < 64 * 2**20


def test_a_rank_that_dies_in_a_kernel(run_suite, options):
    suite = """
        @distributed
        def test_dies(ddp):
            dist.barrier()
            if ddp.rank == ddp.world_size - 1:
                torch.cuda._sleep(10**8)
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(torch.ones(1, device=ddp.device))
            torch.cuda.synchronize()
    """
    arguments, last = options
    result = run_suite(suite + NEXT, *arguments)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"{last} * SIGKILL*"])


def test_a_collective_that_never_ends_on_the_gpu_is_ended_at_its_deadline(run_suite):
    """On one GPU: the collective is queued behind a kernel that runs for a minute and a half."""
    suite = """
        @distributed(timeout=10)
        def test_hangs(ddp):
            dist.barrier()
            torch.cuda._sleep(2 * 10**11)
            dist.all_reduce(torch.ones(1, device=ddp.device))
            torch.cuda.synchronize()
    """
    arguments = ("--ddp-device=cuda", f"--ddp-world-size={GPUS}")
    result = run_suite(suite + NEXT, *arguments)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"* of {GPUS} (nccl, cuda) w* still running at *deadline of 10 s*"])


@pytest.mark.usefixtures("two_gpus")
def test_a_collective_that_one_rank_never_enters_is_ended(run_suite):
    """NCCL's own timeout is ten minutes: the deadline of the test ends its kernel, which spins on the GPU."""
    suite = """
        @distributed(timeout=10)
        def test_hangs(ddp):
            dist.barrier()
            if ddp.rank == 0:
                dist.all_reduce(torch.ones(1, device=ddp.device))
                torch.cuda.synchronize()
    """
    result = run_suite(suite + NEXT, "--ddp-device=cuda", "--ddp-world-size=2")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["rank 0 of 2 (nccl, cuda) *"])


@pytest.mark.usefixtures("two_gpus")
def test_a_group_can_be_aborted_while_its_kernel_hangs(run_suite):
    """The abort of torch ends the hung kernel in the rank itself, and the rank goes on."""
    suite = """
        from torch.distributed.distributed_c10d import _abort_process_group

        @distributed(timeout=60)
        def test_aborts(ddp):
            dist.barrier()
            if ddp.rank == 0:
                dist.all_reduce(torch.ones(1, device=ddp.device))
                _abort_process_group()
                torch.cuda.synchronize()
                assert torch.ones(2, device=ddp.device).sum().item() == 2
    """
    result = run_suite(suite + NEXT, "--ddp-device=cuda", "--ddp-world-size=2", "--ddp-leaks=off")
    result.assert_outcomes(passed=2)
