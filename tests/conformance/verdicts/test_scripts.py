"""A script shows the failure that it was written for, and shows none once the submission is right."""

import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import pytest
import torch
import torch._dynamo  # optimizers import it: once for all scripts that run in forks of this process
from bug import Bug, right
from bugs import BUGS

from conformance.cli import main
from conformance.components.registry import COMPONENTS
from conformance.execution.executor import Executor
from conformance.execution.fork_servers import ranks_from
from conformance.judging.run_check import run_check
from conformance.reproduction import files
from conformance.reproduction import script as script_text
from conformance.scenarios.layers import Again, Conv, Linear
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import Scenario
from conformance.submissions.library import Library, Named
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
    """Run a script as a student would."""
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=200)
    return ran.returncode, ran.stdout + ran.stderr


def run_in_a_fork(script: Path) -> tuple[int, str]:
    """Run a flat script in a fork of this process, which has imported torch: in a tenth of the time."""
    with tempfile.TemporaryFile("w+") as output:
        if not (child := os.fork()):
            os._exit(_ended(script, output.fileno()))
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read()


def _ended(script: Path, output: int) -> int:
    torch.set_num_threads(1)  # threads of this process are not there in a fork
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:  # noqa: BLE001  as Python itself would
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def first(component: str, **check: str) -> Bug:
    """Return the first bug of a component whose check has these attributes."""
    checks = {one.id: one for one in COMPONENTS[component].checks}
    return next(
        bug
        for bug in BUGS
        if bug.component == component and all(getattr(checks[bug.check], k) == v for k, v in check.items())
    )


@pytest.mark.parametrize(
    ("bug", "said"),
    [
        (first("ddp", id="gradients_averaged"), "rank 0, step 1, gradient of layers.0.weight: [["),
        (first("naive_ddp", id="any_schedule"), "any_schedule  failed\n"),
        pytest.param(first("ddp_bucketed", theme="communication"), "  failed\n", marks=pytest.mark.long),
        pytest.param(first("sharded_optimizer", id="zero_grad"), "zero_grad  failed\n", marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_script_tells_a_bug_from_right_code(bug, said, script_of, submit):
    script = script_of(submit(**bug.planted()), bug.component, bug.check)
    code, shown = run(script)
    assert (code, said in shown) == (1, True), shown
    assert (REPLAYS in script.read_text()) == ("failed" in said)
    assert ("no lines for simulated ranks and their schedule" in script.read_text()) == (bug.check == "any_schedule")
    submit(**right(bug.component))
    assert run(script)[0] == 0


FLAT = [first("naive_ddp", id="trains[uneven_batches]"), first("sharded_optimizer", id="groups[own_options]")]
PARTS = [name for name, one in COMPONENTS.items() if one.contract.kind == "part" and name != "checkpoint"]
FLAT += [first(name, theme="numbers") for name in PARTS]


@pytest.mark.parametrize("bug", FLAT, ids=lambda bug: f"{bug.component}-{bug.check}")
def test_a_flat_script_tells_a_bug_from_right_code(bug, script_of, submit):
    script = script_of(submit(**bug.planted()), bug.component, bug.check)
    assert REPLAYS not in script.read_text()
    code, shown = run_in_a_fork(script)
    assert (code, "expected" in shown) == (1, True), shown
    submit(**right(bug.component))
    assert run_in_a_fork(script) == (0, "nothing differs\n")


TWICE = ModelSpec(layers=(Linear(1, bias=False), Again(0)), recomputed=True, reentrant=True)
OF_ANY_USE = {
    "another_dtype": Scenario(converted="float64"),
    "another_layout": Scenario(model=ModelSpec(layers=(Linear(2), Conv(2))), converted="channels_last"),
    "past_the_wrapper": Scenario(unwrapped=True),
    "reentrant_checkpoints": Scenario(model=TWICE),
}


@pytest.mark.parametrize("scenario", OF_ANY_USE.values(), ids=OF_ANY_USE)
def test_a_flat_script_tells_torchs_ddp_from_right_code_where_the_model_is_used_otherwise(scenario, tmp_path):
    script, wrap = tmp_path / "script.py", Named("wrap", "torch.nn.parallel", "DistributedDataParallel")
    sources = {"naive_ddp": locate("examples/correct"), "ddp": Library({"get_ddp": wrap}, ())}
    for code, (component, source) in enumerate(sources.items()):
        one = COMPONENTS[component]
        failure = script_text.Failure(source=source, component=one, check=one.checks[0], message="")
        text, why = files.flat_text(failure, scenario, 7)
        assert not why
        script.write_text(text)
        assert run_in_a_fork(script)[0] == code


@pytest.mark.parametrize(
    ("submission", "said"),
    [(RAISES, "RuntimeError: no wrapper yet"), pytest.param(HANGS, "dist.barrier()", marks=pytest.mark.long)],
)
def test_a_script_shows_a_crash_and_a_hang(submission, said, script_of, submit):
    code, shown = run_in_a_fork(script_of(submit(submission), "naive_ddp", "runs_to_the_end"))
    assert (code, said in shown) == (1, True), shown


@pytest.mark.usefixtures("one_server")
def test_a_grade_leaves_scripts_alone_and_removes_those_of_the_one_before(submit, tmp_path, monkeypatch):
    bug, here = first("overhead_model", theme="numbers"), tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    folder = submit(**bug.planted())
    assert grade_here(folder) == 1
    (script,) = here.rglob("*.py")
    assert {*here.rglob("*.*")} == {script, script.with_suffix(".json")}
    own = script.with_name("overhead_model-of-my-own.py")
    own.write_text("print('mine')\n")
    submit(**right("overhead_model"))
    assert grade_here(folder) == 0
    assert [path for path in here.rglob("*") if path.is_file()] == [own]
    assert sorted(path.name for path in folder.iterdir()) == ["adapters.py"]


def grade_here(folder: Path) -> int:
    """Grade an overhead model with the command, in the current folder."""
    return main(["grade", str(folder), "--components", "overhead_model", "--max-examples", "1"])
