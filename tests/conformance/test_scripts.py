"""A script shows the failure that it was written for, and shows none once the submission is right."""

import subprocess
import sys
from pathlib import Path

import pytest
from bug import Bug, right
from bugs import BUGS

from conformance.components.registry import COMPONENTS
from conformance.execution.executor import Executor
from conformance.execution.fork_servers import ranks_from
from conformance.judging.run_check import run_check
from conformance.reproduction import files
from conformance.submissions.location import locate

REPLAYS = "from conformance.cli import main"
RAISES = """
class Raises:
    def __init__(self, module):
        raise RuntimeError("no wrapper yet")

def get_naive_ddp(module):
    return Raises(module)

def naive_ddp_on_after_backward(ddp_model, optimizer):
    pass
"""
HANGS = """
import torch.distributed as dist

def get_naive_ddp(module):
    if dist.get_rank() == 0:
        dist.barrier()
    return module

def naive_ddp_on_after_backward(ddp_model, optimizer):
    pass
"""


@pytest.fixture
def script_of(launcher, tmp_path):
    """Hold a component of a submission to a check, and return the script of its failure."""

    def write(folder: Path, component: str, check_id: str) -> Path:
        one = COMPONENTS[component]
        check = next(check for check in one.checks if check.id == check_id)
        with ranks_from(launcher) as ranks:
            executor = Executor(ranks, locate(str(folder)), "1")
            result = run_check(one, check, executor, world_size=3, seed=1, examples=10)
            assert result.status == "failed", result.message
            return files.write(one, result, executor, tmp_path / "repro")

    return write


def run(script: Path) -> tuple[int, str]:
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=200)
    return ran.returncode, ran.stdout + ran.stderr


def first(component: str, check: str) -> Bug:
    return next(bug for bug in BUGS if (bug.component, bug.check) == (component, check))


FLAT = [
    (first("ddp", "gradients_averaged"), "rank 0, step 1, gradient of layers.0.weight: [["),
    (first("sharded_optimizer", "groups[own_options]"), "rank 0, step 1, layers."),
]
REPLAYED = [
    (first("ddp_bucketed", "overlaps_backward"), "overlaps_backward  failed"),
    (first("sharded_optimizer", "zero_grad"), "zero_grad  failed"),
]
IN_EVERY_RUN = [FLAT[0], REPLAYED[1]]


@pytest.mark.parametrize(
    ("bug", "said"),
    [
        pytest.param(
            *pair, id=f"{pair[0].component}-{pair[0].check}", marks=() if pair in IN_EVERY_RUN else pytest.mark.long
        )
        for pair in FLAT + REPLAYED
    ],
)
def test_a_script_tells_a_bug_from_right_code(bug, said, script_of, submit):
    script = script_of(submit(**bug.planted()), bug.component, bug.check)
    code, shown = run(script)
    assert (code, said in shown) == (1, True), shown
    assert (REPLAYS in script.read_text()) == ((bug, said) in REPLAYED)
    submit(**right(bug.component))
    assert run(script)[0] == 0


@pytest.mark.parametrize(
    ("submission", "said"),
    [
        (RAISES, "RuntimeError: no wrapper yet"),
        pytest.param(HANGS, "dist.barrier()", marks=pytest.mark.long),
    ],
)
def test_a_script_shows_a_crash_and_a_hang(submission, said, script_of, submit):
    code, shown = run(script_of(submit(submission), "naive_ddp", "runs_to_the_end"))
    assert (code, said in shown) == (1, True), shown


def test_a_later_grade_removes_the_scripts_of_the_one_before_alone(grade_path, submit, tmp_path):
    bug = first("naive_ddp", "trains[tied_parameters]")
    folder, repro = submit(**bug.planted()), tmp_path / "repro"
    graded = grade_path(folder, components=["naive_ddp"], examples=2, core=True)
    place = Path(next(check.script for check in graded.components[0].checks if check.script)).parent
    own = place / "naive_ddp-of-my-own.py"
    own.write_text("print('mine')\n")
    assert len(list(place.iterdir())) >= 3
    submit(**right("naive_ddp"))
    grade_path(folder, components=["naive_ddp"], examples=1, core=True)
    assert list(place.iterdir()) == [own]
    own.unlink()
    assert repro.exists()
