"""Scripts of what shows only now and then, in large models, or around training: they show the bug, and nothing else."""

import subprocess
import sys

import pytest
from bug import Bug, right
from planted_further_bugs import FURTHER_BUGS

from conformance.checks.table import CHECKS
from conformance.layers import Embedding, Linear
from conformance.location import locate
from conformance.model_spec import ModelSpec
from conformance.reproduction import Reproduction
from conformance.scenario import OptimizerSpec, Scenario

PLAIN = ModelSpec(2, (Linear(3), Linear(1)))
DECAYING = OptimizerSpec(options={"lr": 0.1, "weight_decay": 0.1})
SCENARIOS = {
    "used_in_some_steps": Scenario(
        model=ModelSpec(2, (Linear(1),), branch="used_in_even_steps"), optimizer=DECAYING, steps=2
    ),
    "used_by_ranks_in_turn": Scenario(model=ModelSpec(2, (Linear(1),), branch="used_in_turn"), steps=2),
    "large_parameter": Scenario(
        model=ModelSpec(1024, (Linear(1025),), dtype="float32"), optimizer=OptimizerSpec(options={"lr": 0.5})
    ),
    "no_sync_may_be_nested": Scenario(model=PLAIN, micro_batches=2, no_sync=True, nests=True),
    "no_sync_on_one_rank": Scenario(world_size=1, model=PLAIN, micro_batches=2, no_sync=True),
    "named_tuples": Scenario(model=ModelSpec(2, (Linear(1),), named=True)),
    "wrapping_leaves_the_generators": Scenario(model=PLAIN),
    "overlaps_backward": Scenario(
        model=ModelSpec(2, (Linear(3), Linear(2), Linear(2), Linear(1))), bucket_size_mb=2**-20, steps=2, gated=True
    ),
    "gradient_penalty": Scenario(model=PLAIN, penalised=True),
    "uneven_sparse_gradients": Scenario(
        model=ModelSpec(1, (Linear(2), Embedding(sparse=True), Linear(1))), uneven=True
    ),
}
SAID = {
    "overlaps_backward": "rank 0 launched 1 of 8 collectives before the first layer's gradients were computed",
    "used_in_some_steps": "rank 0, step 2, branches.0.weight",
    "used_by_ranks_in_turn": "rank 0, step 2, gradient of branches.0.weight",
    "large_parameter": "layers.0.weight: element ",
    "no_sync_may_be_nested": "rank 0: under no_sync, ['launched allreduce_",
    "wrapping_leaves_the_generators": "rank 1: wrapping moved the global generators of ",
}


@pytest.mark.long
@pytest.mark.parametrize("bug", FURTHER_BUGS, ids=lambda bug: f"{bug.check} of {bug.component}")
def test_a_script_tells_the_bug_from_right_code(bug, submit, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(written(bug, submit(**bug.planted())))
    wrong = run(script)
    submit(**right(bug.component))
    again = run(script)
    assert wrong.returncode == 1, wrong.stdout
    assert SAID.get(bug.check, "") in wrong.stdout
    assert len(wrong.stdout) < 10_000
    assert (again.returncode, again.stdout) == (0, "nothing differs\n"), again.stdout + again.stderr


def written(bug: Bug, folder) -> str:
    check = next(check for check in CHECKS[bug.component] if check.id == bug.check)
    scenario = SCENARIOS[bug.check]
    return Reproduction(
        location=locate(str(folder)), component=bug.component, check=check, scenario=scenario, seed=7, message="wrong"
    ).text()


def run(script):
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=120)
