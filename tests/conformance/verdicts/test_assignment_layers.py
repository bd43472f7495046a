"""Sharding by the classes of the assignment's own layers is what its text asks for, so models are made of these."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from way import CONTROLS, Way
from ways import RECOVERS

from conformance.components.fsdp.on_ranks import of_the_assignment
from conformance.workload.modules import SmoothNorm

BY_LAYERS = Way("by_layers", "ByLayers", "fsdp", RECOVERS)
TEMPLATE = "cs336-basics/cs336_basics"
BASICS = """
from torch import nn


class Linear(nn.Module):
    def __init__(self, d_in, d_out):
        raise NotImplementedError


class Embedding(nn.Module):
    pass


class RMSNorm(nn.Module):
    pass
"""


def with_the_template(folder: Path, basics: str = BASICS) -> Path:
    """Put the assignment's package beside the adapters, as it is handed out."""
    (folder / TEMPLATE).mkdir(parents=True)
    (folder / TEMPLATE / "__init__.py").touch()
    (folder / TEMPLATE / "model.py").write_text(basics)
    (folder / TEMPLATE).with_name("pyproject.toml").touch()
    return folder


def failures(report) -> dict[str, str]:
    (graded,) = report.components
    return {check.id: check.message for check in graded.checks if check.status != "passed"}


@pytest.mark.long
def test_who_shards_the_assignments_layers_passes(grade_path, submit):
    folder = with_the_template(submit(BY_LAYERS.adapters, **CONTROLS))
    assert failures(grade_path(folder, components=["fsdp"], examples=2)).keys() <= set(BY_LAYERS.not_held_to)


def test_without_the_assignments_package_they_are_torchs(grade_path, submit):
    folder = submit(BY_LAYERS.adapters, **CONTROLS)
    assert not failures(grade_path(folder, components=["fsdp"], examples=1, core=True))


@pytest.mark.parametrize("basics", ["raise OSError('no tables here')\n", "import no_such_package\n", "class Linear(\n"])
def test_a_package_that_nobody_needs_may_be_broken(grade_path, submit, basics):
    of_torch = CONTROLS["by_layers"].replace("from cs336_basics.model import", "from torch.nn import")
    folder = with_the_template(submit(BY_LAYERS.adapters, **CONTROLS | {"by_layers": of_torch}), basics)
    assert not failures(grade_path(folder, components=["fsdp"], examples=1, core=True))


def test_who_looks_for_torchs_layers_shards_nothing_of_the_assignment(first_failed, submit):
    of_torch = CONTROLS["by_layers"].replace("from cs336_basics.model import", "from torch.nn import")
    folder = with_the_template(submit(BY_LAYERS.adapters, **CONTROLS | {"by_layers": of_torch}))
    failed = first_failed(folder, "fsdp", examples=2)
    assert failed.id == "parameters_are_sharded"
    assert "The layers are `Linear`, `Embedding` and `RMSNorm` of `cs336_basics.model`" in failed.message
    ran = subprocess.run([sys.executable, failed.script], capture_output=True, text=True, check=False, timeout=120)
    assert (ran.returncode, "bytes" in ran.stdout) == (1, True), ran.stdout + ran.stderr


@pytest.fixture
def template(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(with_the_template(tmp_path) / "cs336-basics")
    yield
    for name in [name for name in sys.modules if name.startswith("cs336_basics")]:
        del sys.modules[name]


@pytest.mark.usefixtures("template")
def test_layers_of_the_assignment_compute_as_torchs():
    model = nn.Sequential(nn.Embedding(3, 2), SmoothNorm(2), nn.Linear(2, 4, bias=False), nn.Tanh())
    tokens = torch.tensor([[0, 2], [1, 1]])
    before = model(tokens)
    of_the_assignment(model)
    of_theirs = [layer for layer in model if type(layer).__module__ == "cs336_basics.model"]
    assert [type(layer).__name__ for layer in of_theirs] == ["Embedding", "RMSNorm", "Linear"]
    assert torch.equal(model(tokens), before)


def test_without_it_layers_stay():
    with pytest.raises(ImportError, match="cs336_basics"):
        of_the_assignment(nn.Linear(1, 1))
