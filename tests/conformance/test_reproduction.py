"""A script that shows a failure trains in the dtypes of the scenario, and finds what differs only where it does."""

import subprocess
import sys
from pathlib import Path

import pytest

from conformance.checks.table import CHECKS
from conformance.location import locate
from conformance.reproduction import Reproduction
from conformance.scenario import Linear, ModelSpec, OptimizerSpec, Scenario

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = {
    "float32": ModelSpec(inputs=3, layers=(Linear(4), Linear(2)), dtype="float32"),
    "bfloat16": ModelSpec(inputs=3, layers=(Linear(4), Linear(2)), dtype="bfloat16"),
    "mixed": ModelSpec(
        inputs=3, layers=(Linear(4, dtype="float32"), Linear(4), Linear(2, dtype="float32")), scale=True
    ),
}
NARROW = ("float32", "bfloat16")


def shown(submission: str, model: ModelSpec, folder: Path) -> subprocess.CompletedProcess[str]:
    check = next(check for check in CHECKS["naive_ddp"] if check.id == "gradients_averaged")
    scenario = Scenario(model=model, optimizer=OptimizerSpec(options={"lr": 0.1}), steps=1, batch=2)
    wanted = Reproduction(
        location=locate(str(EXAMPLES / submission)),
        component="naive_ddp",
        check=check,
        scenario=scenario,
        seed=7,
        message="the gradients are not the average",
    )
    script = folder / wanted.file
    script.write_text(wanted.script())
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("dtypes", MODELS)
def test_a_bug_shows_in_every_dtype(dtypes, tmp_path):
    wrong = shown("summed_gradients", MODELS[dtypes], tmp_path)
    assert (wrong.returncode, wrong.stderr) == (1, "")
    assert "rank 0, step 1, gradient of layers.0.weight" in wrong.stdout


@pytest.mark.parametrize("dtypes", ["mixed", *(pytest.param(name, marks=pytest.mark.long) for name in NARROW)])
def test_nothing_is_made_up(dtypes, tmp_path):
    right = shown("correct", MODELS[dtypes], tmp_path)
    assert (right.returncode, right.stdout, right.stderr) == (0, "nothing differs\n", "")
