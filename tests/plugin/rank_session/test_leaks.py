"""What the leak guard restores, what it leaves alone, and what `ddp_leaks_ignore` forgives."""

import re

import pytest

SETTINGS = """
import numpy

def change():
    torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
    torch.set_flush_denormal(True)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.opt_einsum.enabled = not torch.backends.opt_einsum.enabled
    torch.backends.cuda.enable_flash_sdp(False)
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    torch.multiprocessing.set_sharing_strategy("file_system")
    torch.set_printoptions(precision=2)
    torch._dynamo.config.suppress_errors = True
    numpy.seterr(all="raise")

def state():
    import torch._dynamo.config  # on ranks only: in this process it could not be imported a second time

    return (
        torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype,
        (torch.tensor([1e-40]) * 1).item(),
        torch.backends.cudnn.benchmark,
        torch.backends.cuda.matmul.fp32_precision,
        torch.get_float32_matmul_precision(),
        torch.backends.opt_einsum.enabled,
        torch.backends.cuda.flash_sdp_enabled(),
        dist.get_debug_level(),
        torch.multiprocessing.get_sharing_strategy(),
        str(torch.tensor(0.12345)),
        torch._dynamo.config.suppress_errors,
        numpy.geterr(),
    )

BEFORE = []

@distributed
def test_before(ddp):
    BEFORE.append(state())

@distributed
def test_changes(ddp):
    change()

@distributed
def test_next(ddp):
    assert [state()] == BEFORE
"""
NAMES = (
    "float32 matmul precision changed from highest to tf32",
    "autocast changed from off to torch.bfloat16 on cpu",
    "flushing of denormal numbers changed from False to True",
    "torch.backends.cudnn.benchmark changed from False to True",
    "torch.backends.opt_einsum.enabled changed from ",
    "flash attention changed from True to False",
    "torch._dynamo.config changed: suppress_errors; ",
    "debug level of torch.distributed changed from ",
    "sharing strategy changed from file_descriptor to file_system",
    "print options of torch changed from ",
    "error state of numpy changed from ",
)


def test_settings_of_libraries_are_restored_and_reported(run_suite):
    result = run_suite(SETTINGS)
    result.assert_outcomes(passed=3, warnings=1)
    warning = re.sub(r"\s+", " ", result.stdout.str())
    for name in NAMES:
        assert name in warning
    result.stdout.fnmatch_lines(["*; restored"])


THREADS = """
import threading, time


PIDS = []

@distributed
@pytest.mark.parametrize("number", [1, 2, 3])
def test_it(ddp, number):
    from {module} import Monitor
    from pytest_ddp.rank_session import leak_resources

    leak_resources._INSTALLED = ({folder!r},)
    leak_resources._ENDING_SECONDS = 0.01
    Monitor(daemon=True, name="monitor").start()
    PIDS.append(os.getpid())
    assert len(set(PIDS)) == 1
"""
MONITOR = """
import threading

class Monitor(threading.Thread):
    def run(self): threading.Event().wait()
"""


@pytest.mark.parametrize("module", ["tqdm._monitor", "wandb.sdk", "tensorboard.writer", "opentelemetry.sdk.trace"])
def test_service_threads_of_known_libraries_are_no_leak(run_suite, pytester, module):
    write_module(pytester, module)
    result = run_suite(THREADS.format(module=module, folder="/nowhere"), "--ddp-leaks=error")
    result.assert_outcomes(passed=3)


def test_a_thread_of_another_library_is_reported_and_its_rank_goes_on(run_suite, pytester):
    write_module(pytester, "library.threads")
    result = run_suite(THREADS.format(module="library.threads", folder=str(pytester.path)))
    result.assert_outcomes(passed=3, warnings=3)
    result.stdout.fnmatch_lines(["*left behind: 1 thread of a library still running: monitor, kept"])


def test_a_thread_of_the_suite_costs_the_ranks_and_the_warning_says_how_to_forgive_it(run_suite, pytester):
    write_module(pytester, "ours.threads")
    suite = THREADS.format(module="ours.threads", folder="/nowhere")
    result = run_suite(suite.replace("== 1\n", "== 1 or number > 1\n"))
    result.assert_outcomes(passed=3, warnings=3)
    result.stdout.fnmatch_lines(
        ["*1 thread still running: monitor; its ranks are replaced (to forgive it: ddp_leaks_ignore = thread:monitor)"]
    )
    for option in ("--ddp-leaks-ignore=thread:mon*", "--ddp-leaks=off"):
        run_suite(suite, option).assert_outcomes(passed=3)


def test_what_is_forgiven_is_kept(run_suite, pytester):
    pytester.makeini("[pytest]\nddp_leaks_ignore =\n    environment:KEPT_*\n    grad mode\n")
    result = run_suite("""
        @distributed
        def test_changes(ddp):
            os.environ["KEPT_A"] = os.environ["PUT_BACK"] = "1"
            torch.set_grad_enabled(False)

        @distributed
        def test_next(ddp):
            assert os.environ["KEPT_A"] == "1"
            assert "PUT_BACK" not in os.environ
            assert not torch.is_grad_enabled()
        """)
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["*test_changes left behind: environment changed: PUT_BACK; restored"])


def write_module(pytester: pytest.Pytester, module: str) -> None:
    """Write a module with the class `Monitor`, a thread that never ends."""
    folder = pytester.path.joinpath(*module.split(".")[:-1])
    folder.mkdir(parents=True)
    (folder / f"{module.rpartition('.')[2]}.py").write_text(MONITOR)


def test_flags_that_contradict_one_another_are_restored(run_suite):
    result = run_suite("""
        @distributed
        def test_changes(ddp):
            torch.backends.cudnn.conv.fp32_precision = "ieee"

        @distributed
        def test_next(ddp):
            assert torch.backends.cudnn.allow_tf32
            assert torch.backends.cudnn.conv.fp32_precision == "tf32"
        """)
    result.assert_outcomes(passed=2, warnings=1)
