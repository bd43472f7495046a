"""Submissions that crash, leave, hang or lie fail with words; none is taken for right, none stops the grader."""

import re
import textwrap

import pytest
from bug import right
from rich.console import Console

from conformance.grading.formats.console import show

BODY = """
    import ctypes, os, sys, threading
    import torch
    import torch.distributed as dist

    def get_naive_ddp(module):
        for parameter in module.parameters():
            dist.broadcast(parameter.data, 0)
        return module

    def naive_ddp_on_after_backward(ddp_model, optimizer):
        for parameter in ddp_model.parameters():
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    """


def misbehaving(line: str) -> str:
    """A right submission whose hook first does something else."""
    loop = "for parameter in ddp_model.parameters():"
    return BODY.replace(loop, f"{line}\n        {loop}")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("os._exit(0)", "exited with code 0 before it finished"),
        ("dist.get_rank() == 1 and os._exit(7)", "exited with code 7 before it finished"),
        ("sys.exit(0)", "SystemExit"),
        ("ctypes.string_at(0)", "SIGSEGV"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        (
            "dist.all_reduce(torch.ones(2000 + 1000 * dist.get_rank()))",
            "float32[2000], rank 1 called all_reduce #2 float32[3000]; all ranks must call it with the same shape",
        ),
    ],
)
def test_it_fails_with_what_it_did(grade_path, submit, line, words):
    report = grade_path(submit(misbehaving(line)), components=["naive_ddp"], world_size=2)
    (component,) = report.components
    failed = [check for check in component.checks if check.status == "failed"]
    assert component.status == "failed"
    assert any(words in f"{check.message} {check.diagnosis}" for check in failed), [check.message for check in failed]
    assert "error" not in {check.status for check in component.checks}


def test_what_fails_now_and_then_is_told_as_a_race_with_its_rate(first_failed, submit):
    every_third = "new = not hasattr(ddp_model, 'run'); sys.runs = getattr(sys, 'runs', 0) + new"
    every_third += "; ddp_model.run = sys.runs; sys.runs % 3 or ddp_model.layers[0].weight.grad.mul_(3)"
    first = first_failed(submit(misbehaving(every_third)), "naive_ddp", world_size=2)
    assert first.status == "failed", first
    assert re.search(r"This is a race: with the same numbers, [3-5] of 11 runs failed", first.diagnosis), first


@pytest.mark.long
def test_a_hang_that_does_not_come_again_is_a_race_too(grade_path, submit, tmp_path):
    once = f"mark = '{tmp_path}/hung'; rank = dist.get_rank()"
    once += (
        "; dist.get_world_size() == 1 or rank or os.path.exists(mark) or (open(mark, 'w'), threading.Event().wait())"
    )
    (component,) = grade_path(submit(misbehaving(once)), components=["naive_ddp"], world_size=2).components
    first = next(check for check in component.checks if check.status == "failed")
    assert "This is a race: with the same numbers, 1 of 2 runs failed" in first.diagnosis


def test_the_body_itself_is_right(grade_path, submit):
    (component,) = grade_path(submit(BODY), components=["naive_ddp"], world_size=2, examples=1).components
    assert component.status == "passed"
    lacking = next(check for check in component.checks if check.id == "no_sync")
    assert (lacking.status, lacking.message) == ("not_run", "the wrapped model has no `no_sync`")


def test_output_of_a_submission_does_not_matter(held_to, submit):
    noisy = misbehaving("print('x' * 100000)")
    assert held_to(submit(noisy), "naive_ddp", "training_equals_one_process").status == "passed"


def test_not_implemented_means_not_submitted(grade_path, submit):
    more = """
    def get_flat_ddp(module): raise NotImplementedError
    def flat_ddp_on_after_backward(ddp_model, optimizer): ...
    """
    report = grade_path(submit(right("overhead_model")["adapters"] + textwrap.dedent(more)))
    statuses = {part.name: part.status for part in report.components}
    assert statuses["flat_ddp"] == "not_submitted"
    assert statuses["overhead_model"] == "passed"


def test_a_component_that_lacks_a_function_is_not_submitted_and_the_function_is_named(grade_path, submit, capsys):
    more = """
    def get_ddp_bucketed(module, bucket_size_mb): return module
    """
    report = grade_path(submit(right("overhead_model")["adapters"] + textwrap.dedent(more)))
    parts = {part.name: part for part in report.components}
    lacking = (
        "ddp_bucketed_on_after_backward(ddp_model, optimizer)",
        "ddp_bucketed_on_train_batch_start(ddp_model, optimizer)",
    )
    assert (parts["ddp_bucketed"].status, parts["ddp_bucketed"].missing_functions) == ("not_submitted", lacking)
    assert {name for name, part in parts.items() if part.missing_functions} == {"ddp_bucketed"}
    assert report.to_json()["components"]["ddp_bucketed"]["missing_functions"] == list(lacking)
    show(report, Console(width=200))
    table = capsys.readouterr().out
    assert all(f"Missing: {function}, for ddp_bucketed" in table for function in lacking)
    assert "Not submitted: naive_ddp, flat_ddp, ddp_individual_parameters, ddp_bucketed, ddp" in table


def test_what_stands_in_for_absent_things_is_said(grade_path, submit):
    more = """
    import importlib.metadata
    import torch
    import wandb
    VERSION = importlib.metadata.version("no-such-course")
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_push("x")
    """
    report = grade_path(
        submit(right("overhead_model")["adapters"] + textwrap.dedent(more)), components=["overhead_model"]
    )
    (component,) = report.components
    assert component.status == "passed"
    said = " ".join(report.stand_ins)
    assert "package wandb" in said
    assert "version of no-such-course" in said
    assert "torch.cuda.synchronize does nothing on a CPU" in said


def test_adapters_in_a_tests_folder_may_import_their_neighbours_and_their_package(held_to, submit):
    folder = submit(
        "",
        tests__adapters="""
            from .wiring import get_naive_ddp
            from my_systems.ddp import naive_ddp_on_after_backward
            """,
        tests__wiring="from my_systems.ddp import get_naive_ddp",
        my_systems__ddp=BODY,
    )
    (folder / "adapters.py").unlink()
    assert held_to(folder, "naive_ddp", "gradients_averaged").status == "passed"


def test_a_package_without_init_is_imported_again_once_a_stub_is_offered(held_to, submit):
    folder = submit(
        "from my_systems.parts.ddp import get_naive_ddp, naive_ddp_on_after_backward",
        my_systems__init="",
        my_systems__parts__ddp="import wandb\n" + textwrap.dedent(BODY),
    )
    (folder / "my_systems/init.py").rename(folder / "my_systems/__init__.py")
    assert held_to(folder, "naive_ddp", "gradients_averaged").status == "passed"
