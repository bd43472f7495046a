"""The bundled examples get the verdicts that their README promises; the references pass everything."""

import subprocess
import sys
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.components.registry import BY_DEFAULT, COMPONENTS

EXAMPLES = Path(__file__).parents[3] / "examples"
WRAPPERS_AND_OPTIMIZER = [name for name in BY_DEFAULT if COMPONENTS[name].contract.kind != "part"]
BUGS = [
    ("summed_gradients", "naive_ddp", "gradients_averaged", "summed, not averaged"),
    ("unsynchronised_flat", "flat_ddp", "gradients_averaged", "a hook before the gradient is stored"),
    ("no_overlap", "ddp_individual_parameters", "overlaps_backward", "async_op=True"),
    ("last_bucket_lost", "ddp_bucketed", "gradients_averaged", "bucket"),
    ("first_group_only", "sharded_optimizer", "groups[own_options]", "first group's options everywhere"),
    ("stale_learning_rate", "sharded_optimizer", "options[lr]", "change of an option ignored"),
]
REFUSED = {"trains[recomputed_activations]": "not_run"}  # by the references' bucketed wrapper, in a sentence
QUICK = {"unsynchronised_flat", "stale_learning_rate"}  # the others are in the long lane
SHOWN = {"last_bucket_lost", "stale_learning_rate"}  # by a script: one of a wrapper, one of an optimizer


@pytest.mark.parametrize(
    ("submission", "components"),
    [
        (str(EXAMPLES / "correct"), len(WRAPPERS_AND_OPTIMIZER)),
        pytest.param("reference.adapters", len(BY_DEFAULT), marks=pytest.mark.long),
    ],
)
def test_correct_submissions_pass_every_core_check_and_the_references_all(grade_path, submission, components):
    ours = submission == "reference.adapters"
    report = grade_path(submission, world_size=4, examples=1, core=not ours)
    submitted = [component for component in report.components if component.submitted]
    assert {component.status for component in submitted} == {"passed"}
    assert len(submitted) == components
    assert report.exit_code == 0
    assert all(component.points == component.max_points > 0 for component in submitted)
    others = {
        check.id: check.status for component in submitted for check in component.checks if check.status != "passed"
    }
    assert others.items() <= REFUSED.items()


@pytest.mark.usefixtures("one_server")
@pytest.mark.parametrize(
    "bug", [pytest.param(bug, id=bug[0], marks=[] if bug[0] in QUICK else [pytest.mark.long]) for bug in BUGS]
)
def test_a_check_fails_first_and_its_scenario_fails_again(first_failed, capsys, bug):
    folder, component, check, words = bug
    found = first_failed(EXAMPLES / folder, component, examples=5)
    assert (found.id, found.level, found.status) == (check, "core", "failed")
    assert words in f"{found.message} {found.diagnosis}"
    assert main(["replay", str(Path(found.script).with_suffix(".json"))]) == 1
    assert capsys.readouterr().out == f"{component}: {check}  failed\n{found.diagnosis}\n{found.message}\n"
    if folder in SHOWN:
        shown = subprocess.run([sys.executable, found.script], capture_output=True, text=True, check=False, timeout=120)
        assert shown.returncode == 1, shown.stdout + shown.stderr


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_the_references_pass_whatever_the_seed(grade_path, seed):
    report = grade_path("reference.adapters", seed=seed, world_size=4)
    assert [check.id for component in report.components for check in component.checks if check.status != "passed"] == []
