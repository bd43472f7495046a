"""What a submission keeps or names in a way of its own is found: optimizers in tables, parameters under new names."""

import subprocess
import sys

import pytest
import torch
from bug import right
from torch import nn

from conformance.ranks.parameters import parameters_by_name

_CLASS = "class ShardedOptimizer(Optimizer):\n"
_IN_A_TABLE = f"""LOCALS = WeakKeyDictionary()


{_CLASS}    @property
    def local(self):
        return LOCALS.get(self)

    @local.setter
    def local(self, value):
        LOCALS[self] = value

"""
_FORWARD = "    def forward(self, *args, **kwargs):\n        if self.training and"
_RENAMED = f"""    def named_parameters(self, *args, **kwargs):
        for number, param in enumerate(reversed(list(self.module.parameters()))):
            yield f"p{{number}}", param

{_FORWARD}"""


def changed(component, old, new):
    files = right(component)
    assert any(old in text for text in files.values())
    return {name: text.replace(old, new) for name, text in files.items()}


@pytest.mark.parametrize("check", ["state_is_sharded", "state_is_balanced", "state_dict[round_trip]"])
def test_state_of_an_optimizer_in_a_weak_table_is_measured(held_to, submit, check):
    files = changed("sharded_optimizer", _CLASS, _IN_A_TABLE)
    files["sharded_optimizer"] = files["sharded_optimizer"].replace(
        "import torch\n", "from weakref import WeakKeyDictionary\n\nimport torch\n", 1
    )
    result = held_to(submit(**files), "sharded_optimizer", check)
    assert result.status == ("not_run" if check == "state_dict[round_trip]" else "passed"), result.message


_CHECKS = ("initial_broadcast", "training_equals_one_process", "trains[tied_parameters]", "two_side_by_side")


@pytest.mark.parametrize("check", _CHECKS)
def test_a_wrapper_that_renames_every_parameter_is_understood(held_to, submit, check):
    result = held_to(submit(**changed("flat_ddp", _FORWARD, _RENAMED)), "flat_ddp", check)
    assert result.status == "passed", result.message


@pytest.mark.long
def test_a_script_understands_it_too(first_failed, submit):
    files = changed("flat_ddp", _FORWARD, _RENAMED)
    averages = {name: text.replace("/ dist.get_world_size()", "") for name, text in files.items()}
    failed = first_failed(submit(**averages), "flat_ddp")
    assert failed.id == "gradients_averaged"
    submit(**files)
    run = subprocess.run([sys.executable, failed.script], capture_output=True, text=True, check=False, timeout=120)
    assert run.stdout == "nothing differs\n", run.stdout + run.stderr


class Renaming(nn.Module):
    def __init__(self, model, *more):
        super().__init__()
        self.all = nn.ParameterList([*reversed(list(model.parameters())), *more])


def test_new_names_of_the_same_parameters_are_told_apart_from_others():
    model, more = nn.Linear(2, 2), nn.Parameter(torch.ones(2))
    before = dict(model.named_parameters())
    own, extra = parameters_by_name(Renaming(model, more), ("weight", "bias"), before)
    assert own["weight"] is model.weight
    assert own["bias"] is model.bias
    assert extra == ["all.2"]


def test_new_names_of_copies_are_refused():
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"the wrapped model has no parameter 'weight'; it has all\.0, all\.1"):
        parameters_by_name(Renaming(other), ("weight", "bias"), dict(model.named_parameters()))
