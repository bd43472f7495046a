"""Scripts of what shows only now and then, in large models, or around training: they show the bug, and nothing else."""

import subprocess
import sys
from dataclasses import replace

import pytest
from bug import Bug, right
from bugs import BUGS

from conformance.components.registry import COMPONENTS
from conformance.reproduction.training_script import Reproduction
from conformance.scenarios.layers import Embedding, Linear
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import AddGroup, Group, OptimizerSpec, Scenario, SetOption
from conformance.submissions.location import locate

PLAIN = ModelSpec(2, (Linear(3), Linear(1)))
DECAYING = OptimizerSpec(options={"lr": 0.1, "weight_decay": 0.1})
OPTIMIZED = Scenario(model=PLAIN, replicated=True, cleared_by="model")
NAMES = tuple(PLAIN.shapes)
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
    "evaluation_between_steps": Scenario(model=PLAIN, evaluates=True, steps=2),
    "calls_the_model_once": Scenario(model=PLAIN, evaluates=True),
    "positional_arguments": Scenario(model=ModelSpec(2, (Linear(1),), positional=True)),
    "buffers_broadcast": Scenario(model=ModelSpec(2, (Linear(1),), buffer=True), gated=True),
    "forward_without_gradients": Scenario(model=PLAIN, peeks=True),
    "bucket_size_respected": Scenario(
        model=ModelSpec(2, (Linear(2, bias=False),) * 12), bucket_size_mb=4 * 32 / 2**20, steps=2
    ),
    "mixed_dtypes": Scenario(model=PLAIN.with_dtype(1, "float32"), gated=True),
    "unused_while_accumulating": Scenario(
        model=ModelSpec(2, (Linear(1),), branch="used_on_rank_0"), optimizer=DECAYING, micro_batches=2
    ),
    "options_through_param_groups": replace(
        OPTIMIZED, optimizer=OptimizerSpec("AdamW"), steps=2, schedule=(SetOption(1, "eps", 0.1),)
    ),
    "groups_are_waited_for": replace(
        OPTIMIZED, optimizer=OptimizerSpec(groups=(Group(NAMES[:2], {}), Group(NAMES[2:], {}))), gated=True
    ),
    "unused_parameters": replace(
        OPTIMIZED, model=ModelSpec(2, (Linear(1),), branch="used_in_even_steps"), optimizer=DECAYING, steps=2
    ),
    "changes_in_an_added_group": replace(
        OPTIMIZED, steps=2, schedule=(AddGroup(1, Group(NAMES[2:], {})), SetOption(1, "lr", 0.5, 1))
    ),
    "large_parameters": replace(OPTIMIZED, model=ModelSpec(512, (Linear(520, bias=False),) * 2, dtype="float32")),
    "param_groups_hold_all": OPTIMIZED,
    "each_rank_uses_another": Scenario(
        model=ModelSpec(2, (Linear(1),), branch="one_each"), optimizer=DECAYING, steps=2
    ),
    "wraps_on_two_machines": Scenario(model=PLAIN, two_machines=True),
    "steps_on_two_machines": replace(OPTIMIZED, two_machines=True),
    "overlaps_after_evaluation": Scenario(
        model=ModelSpec(2, (Linear(3), Linear(2), Linear(2), Linear(1))),
        bucket_size_mb=2**-20,
        steps=2,
        evaluates=True,
        gated=True,
    ),
    "closure_beside_data_parallel": Scenario(model=PLAIN, averaged=True, closure=True, steps=2),
    "bucket_size_of_what_trains": Scenario(
        model=ModelSpec(2, (Linear(2, bias=False),) * 4, frozen=("layers.1.weight", "layers.2.weight")),
        bucket_size_mb=2 * 32 / 2**20,
        steps=2,
    ),
    "bucket_of_each_dtype": Scenario(
        model=ModelSpec(2, (Linear(3),) * 3).with_dtype(1, "bfloat16"), bucket_size_mb=None, steps=2
    ),
}
REFUSED_BY_THE_RIGHT_ONE = {"state_dict_round_trip", "options_survive_loading", "saving_changes_nothing"}
SHOWN = {bug.check: bug for bug in reversed(BUGS) if bug.check in SCENARIOS.keys() - REFUSED_BY_THE_RIGHT_ONE}
SAID = {
    "overlaps_backward": "rank 0 launched 1 of 8 collectives before the first layer's gradients were computed",
    "used_in_some_steps": "rank 0, step 2, branches.0.weight",
    "used_by_ranks_in_turn": "rank 0, step 2, gradient of branches.0.weight",
    "large_parameter": "layers.0.weight: element ",
    "large_parameters": "layers.0.weight: element ",
    "evaluation_between_steps": "rank 0, step 1, the output in evaluation mode: None",
    "param_groups_hold_all": "rank 0: optimizer.param_groups lacks [",
    "bucket_size_respected": "rank 0 exchanged gradients 9 times in a step, not 3 to 6 times",
    "no_sync_may_be_nested": "rank 0: under no_sync, ['launched allreduce_",
    "wrapping_leaves_the_generators": "rank 1: wrapping moved the global generators of ",
}


@pytest.mark.long
@pytest.mark.parametrize("bug", SHOWN.values(), ids=str)
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
    check = next(check for check in COMPONENTS[bug.component].checks if check.id == bug.check)
    scenario = SCENARIOS[bug.check]
    return Reproduction(
        location=locate(str(folder)), component=bug.component, check=check, scenario=scenario, seed=7, message="wrong"
    ).text()


def run(script):
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=120)
