"""A script that shows a failure trains in the dtypes of the scenario, and finds what differs only where it does."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from conformance.components.registry import COMPONENTS
from conformance.reproduction.training_script import Reproduction
from conformance.scenarios.layers import Again, Attention, Conv, Embedding, Linear, Magnitude, Norm, Residual
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import Freeze, LoadWeights, OptimizerSpec, Scenario, Unfreeze
from conformance.submissions.location import locate

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = {
    "float32": ModelSpec(inputs=3, layers=(Linear(4), Linear(2)), dtype="float32"),
    "bfloat16": ModelSpec(inputs=3, layers=(Linear(4), Linear(2)), dtype="bfloat16"),
    "mixed": ModelSpec(
        inputs=3,
        layers=(Linear(4, dtype="float32"), Linear(4), Linear(2, dtype="float32")),
        scale=True,
        gapped=1,
        keyword=True,
        gain_none=True,
    ),
    "broad": ModelSpec(inputs=16, layers=(Linear(64, bias=False), Linear(16, bias=False)), dtype="float32"),
    "sparse": ModelSpec(inputs=1, layers=(Linear(2), Embedding(sparse=True), Linear(1))),
}
NARROW = ("float32", "bfloat16")


EVERYTHING = Scenario(
    model=ModelSpec(
        inputs=2,
        layers=(
            Linear(3),
            Conv(3, channels_last=True),
            Embedding(),
            Norm(),
            Norm("RMSNorm"),
            Norm("GroupNorm"),
            Attention(),
            Residual(),
            Again(7),
            Magnitude(),
            Linear(1),
        ),
        empty=True,
        nested=True,
        recomputed=True,
    ),
    optimizer=OptimizerSpec("RMSprop", {"lr": 0.01, "alpha": 0.9}),
    steps=3,
    batch=2,
    uneven=True,
    micro_batches=2,
    no_sync=True,
    evaluates=True,
    aborts=True,
    clip=0.5,
    gated=True,
    schedule=(Freeze(1, ("layers.0.weight",), drops=False), Unfreeze(2, ("layers.0.weight",)), LoadWeights(2)),
)


GRID = """
import torch.distributed as dist
from torch import nn

class OnAGrid(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, rank = module, dist.get_rank()
        for value in module.state_dict().values():
            dist.broadcast(value, src=0)
        rows, columns = ([dist.new_group(ranks) for ranks in line] for line in ([[0, 1], [2, 3]], [[0, 2], [1, 3]]))
        self.row, self.column = rows[rank // 2], columns[rank % 2]

    def forward(self, x):
        return self.module(x)

def get_naive_ddp(module):
    return OnAGrid(module)

def naive_ddp_on_after_backward(ddp_model, optimizer):
    for parameter in ddp_model.parameters():
        dist.all_reduce(parameter.grad, group=ddp_model.row)
        dist.all_reduce(parameter.grad, group=ddp_model.column)
        parameter.grad /= 4
"""


NO_MODULE = """
import torch.distributed as dist

class Holder:
    def __init__(self, module):
        self.module = module
        for parameter in module.parameters():
            dist.broadcast(parameter.data, 0)

    def __call__(self, *inputs, **options):
        return self.module(*inputs, **options)

def get_naive_ddp(module):
    return Holder(module)

def naive_ddp_on_after_backward(ddp_model, optimizer):
    for parameter in ddp_model.module.parameters():
        dist.all_reduce(parameter.grad)
"""


def shown(
    submission: str, model: ModelSpec, folder: Path, launcher: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    scenario = Scenario(model=model, optimizer=OptimizerSpec(options={"lr": 0.1}), steps=1, batch=2)
    return shown_on(scenario, submission, folder, launcher)


def shown_on(
    scenario: Scenario,
    submission: str | Path,
    folder: Path,
    launcher: Sequence[str] = (),
    check_id: str = "gradients_averaged",
) -> subprocess.CompletedProcess[str]:
    check = next(check for check in COMPONENTS["naive_ddp"].checks if check.id == check_id)
    wanted = Reproduction(
        location=locate(str(EXAMPLES / submission)),
        component="naive_ddp",
        check=check,
        scenario=scenario,
        seed=7,
        message="the property does not hold",
    )
    script = folder / wanted.file
    script.write_text(wanted.text())
    return subprocess.run([sys.executable, *launcher, script], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    "dtypes", ["bfloat16", *(pytest.param(name, marks=pytest.mark.long) for name in ("mixed", "float32"))]
)
def test_a_bug_shows_in_every_dtype(dtypes, tmp_path):
    wrong = shown("summed_gradients", MODELS[dtypes], tmp_path)
    assert (wrong.returncode, wrong.stderr) == (1, "")
    assert "rank 0, step 1, gradient of layers.0.weight" in wrong.stdout


@pytest.mark.parametrize(
    "dtypes", ["mixed", *(pytest.param(name, marks=pytest.mark.long) for name in (*NARROW, "sparse"))]
)
def test_nothing_is_made_up(dtypes, tmp_path):
    right = shown("correct", MODELS[dtypes], tmp_path)
    assert (right.returncode, right.stdout, right.stderr) == (0, "nothing differs\n", "")


def test_a_script_has_every_layer_and_every_part_of_a_schedule(tmp_path):
    wrong = shown_on(EVERYTHING, "summed_gradients", tmp_path)
    assert (wrong.returncode, wrong.stderr) == (1, "")
    assert "rank 0, step 1, gradient of layers.1.weight" in wrong.stdout


@pytest.mark.long
def test_nothing_is_made_up_whatever_the_layers_and_the_schedule(tmp_path):
    right = shown_on(EVERYTHING, "correct", tmp_path)
    assert (right.returncode, right.stdout, right.stderr) == (0, "nothing differs\n", "")


TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2")


def test_torchrun_shows_it_too(tmp_path):
    launched = shown("summed_gradients", MODELS["mixed"], tmp_path, TORCHRUN)
    assert launched.returncode == 1
    assert "rank 0, step 1, gradient of layers.0.weight" in launched.stdout


@pytest.mark.long
@pytest.mark.parametrize(("submission", "code"), [("summed_gradients", 1), ("correct", 0)])
def test_torchrun_shows_the_same(submission, code, tmp_path):
    alone, launched = (shown(submission, MODELS["mixed"], tmp_path, launcher) for launcher in ((), TORCHRUN))
    assert (launched.returncode, launched.stdout) == (alone.returncode, alone.stdout)
    assert alone.returncode == code


@pytest.mark.long
def test_torchrun_with_another_number_of_ranks_is_told(tmp_path):
    launched = shown("correct", MODELS["mixed"], tmp_path, ("-m", "torch.distributed.run", "--nproc-per-node=1"))
    assert launched.returncode == 1
    assert "run this with torchrun --nproc-per-node=2" in launched.stderr


def test_a_wrapper_that_is_no_module_is_shown_too(submit, tmp_path):
    folder = submit(NO_MODULE)
    scenario = Scenario(model=MODELS["float32"], optimizer=OptimizerSpec(options={"lr": 0.1}), evaluates=True)
    wrong = shown_on(scenario, folder, tmp_path)
    assert (wrong.returncode, wrong.stderr) == (1, "")
    assert "rank 0, step 1, gradient of layers.0.weight" in wrong.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("group", "told"), [("column", "nothing differs"), ("row", "allreduce_ carried 16384 bytes in a step")]
)
def test_bytes_are_counted_for_each_group_of_ranks(group, told, submit, tmp_path):
    folder = submit(GRID.replace("group=ddp_model.column", f"group=ddp_model.{group}"))
    options = OptimizerSpec(options={"lr": 0.1})
    scenario = Scenario(model=MODELS["broad"], optimizer=options, steps=1, batch=2, world_size=4)
    counted = shown_on(scenario, folder, tmp_path, check_id="sent_once")
    assert counted.stderr == ""
    assert told in counted.stdout
