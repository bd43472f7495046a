"""A script asks a part what a training loop would, and finds what is wrong only where something is."""

import subprocess
import sys
from pathlib import Path

import pytest
from bug import Bug, right
from bugs import BUGS

from conformance.components.checkpoint.case import CheckpointCase
from conformance.components.distributed_sampler.case import SamplerCase
from conformance.components.evaluation.case import EvaluationCase
from conformance.components.fsdp.case import FsdpCase
from conformance.components.gradient_accumulation.case import AccumulationCase
from conformance.components.loader_generator.case import GeneratorCase
from conformance.components.overhead_model.case import OverheadCase
from conformance.components.registry import COMPONENTS
from conformance.components.sync_batchnorm.case import SyncBatchNormCase
from conformance.reproduction.case_script import PartReproduction
from conformance.submissions.location import locate

CASES = [
    ("overhead_model", OverheadCase()),
    ("distributed_sampler", SamplerCase(3, length=10)),
    ("distributed_sampler", SamplerCase(2, length=3, shuffle=False, drop_last=True)),
    ("distributed_sampler", SamplerCase(2, length=45, drop_last=True, epochs=(None, 0, 3, None, 1), replicas=4)),
    ("evaluation", EvaluationCase(2, sizes=((3, 1), ()), gated=True)),
    ("evaluation", EvaluationCase(2, sizes=((257,), (257,)), again=True, half=True)),
    ("loader_generator", GeneratorCase(2)),
    ("gradient_accumulation", AccumulationCase(2, steps=3, scaled=True, overflow=1)),
    ("gradient_accumulation", AccumulationCase(2, steps=2, samples=2)),
    ("sync_batchnorm", SyncBatchNormCase(3, sizes=(2, 0, 1), dimensions=4, steps=2, gated=True)),
    ("sync_batchnorm", SyncBatchNormCase(2, sizes=(2, 2), affine=False, tracked=False)),
    ("sync_batchnorm", SyncBatchNormCase(2, sizes=(2, 1), dimensions=5, steps=2, momentum=None, at_once=True)),
    ("sync_batchnorm", SyncBatchNormCase(2, sizes=(2, 2), eps=0.1, frozen=True, evaluating=True)),
    ("sync_batchnorm", SyncBatchNormCase(2, sizes=(2, 2), affine=False, bare=True)),
    ("checkpoint", CheckpointCase(1, load_world_size=2)),
    ("checkpoint", CheckpointCase(2, load_world_size=2, scaled=False, apart=True)),
    ("checkpoint", CheckpointCase(1, failing=True)),
    ("fsdp", FsdpCase(2, tokens=3, widths=(3, 4, 2), steps=2, gated=True)),
    ("fsdp", FsdpCase(2, tokens=4, widths=(3, 4, 2), steps=3, half=True, alike=False)),
    ("distributed_sampler", SamplerCase(2, length=45, later=True)),
    ("sync_batchnorm", SyncBatchNormCase(2, sizes=(3, 4), dimensions=3, far=True)),
    ("fsdp", FsdpCase(2, tokens=4, widths=(3, 3, 4), steps=2, buffered=True, tied=True, scalar=True)),
    (
        "fsdp",
        FsdpCase(
            2,
            widths=(3, 4, 2),
            steps=3,
            seldom_gathered=True,
            dtype="float64",
            biased=True,
            transposed=True,
            clears_late=True,
        ),
    ),
    ("overhead_model", OverheadCase(single=True)),
    ("distributed_sampler", SamplerCase(2, length=45, epochs=(0, 3), left=True)),
    ("gradient_accumulation", AccumulationCase(2, steps=2, shrinking=True, at="finish")),
    ("sync_batchnorm", SyncBatchNormCase(2, sizes=(2, 1), dimensions=3, stretched=True, first=True)),
    ("sync_batchnorm", SyncBatchNormCase(2, sizes=(2, 2), steps=2, without_gradients=True, shared=True)),
    ("checkpoint", CheckpointCase(2, load_world_size=2, later=True, reloaded=True)),
    ("loader_generator", GeneratorCase(3, two_machines=True)),
]
_IN_EVERY_RUN = {CASES[9]}
_RIGHT = [pytest.param(*pair, marks=() if pair in _IN_EVERY_RUN else pytest.mark.long) for pair in CASES]

PART_BUGS = [bug for bug in BUGS if COMPONENTS[bug.component].contract.kind == "part"]
_SAMPLE = {next(bug for bug in PART_BUGS if bug.component == "checkpoint")}
_WRONG = [pytest.param(bug, id=str(bug), marks=() if bug in _SAMPLE else pytest.mark.long) for bug in PART_BUGS]


def run(script: str | Path, *launcher: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", *launcher, script]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def written(component: str, case, check: str, folder: Path) -> Path:
    wanted = next(one for one in COMPONENTS[component].checks if one.id == check)
    script = PartReproduction(
        location=locate(str(folder)), component=component, check=wanted, seed=7, message="it is wrong", case=case
    )
    return script.write(folder / "repro")


@pytest.mark.parametrize(("component", "case"), _RIGHT)
def test_nothing_is_made_up(component, case, submit):
    script = written(component, case, COMPONENTS[component].checks[0].id, submit(**right(component)))
    shown = run(script)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "nothing differs\n", "")


@pytest.mark.parametrize("bug", _WRONG)
def test_a_planted_bug_shows(bug: Bug, checked, submit):
    shown = run(checked(submit(**bug.planted()), bug.component, bug.check).repro)
    told, raised = shown.stdout.strip() not in {"", "nothing differs"}, "Error" in shown.stderr
    assert (shown.returncode, told != raised) == (1, True), shown.stdout + shown.stderr


@pytest.mark.long
def test_torchrun_shows_the_same(submit):
    summed = right("evaluation")["adapters"].replace("dist.all_reduce(counts)", "pass")
    script = written("evaluation", EvaluationCase(2, sizes=((3, 1), (2,))), "global_accuracy", submit(summed))
    alone, launched = run(script), run(script, "-m", "torch.distributed.run", "--nproc-per-node=2")
    assert alone.returncode == launched.returncode == 1
    assert alone.stdout == launched.stdout != ""
