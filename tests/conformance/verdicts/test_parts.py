"""The parts of the training loop: a right submission of each passes, and a failure is replayed."""

import json
from pathlib import Path

import pytest
from bug import right
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from way import CONTROLS

from conformance.cli import main
from conformance.components.registry import COMPONENTS
from conformance.scenarios.drawn import drawn_from_json
from conformance.scenarios.plain_data import PlainData
from conformance.strategies import Bounds

LOOP_CHECKS = {name: one.checks for name, one in COMPONENTS.items() if one.contract.kind == "part"}

CASES = st.one_of(
    *(check.scenarios(Bounds(4)) for checks in LOOP_CHECKS.values() for check in checks),
)
PARTS = Path(__file__).parents[1] / "parts"


@pytest.mark.parametrize("examples", [2, pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.parametrize("component", [path.stem for path in sorted(PARTS.glob("*.py"))])
def test_a_right_part_passes_every_check(grade_path, submit, component, examples):
    graded = {part.name: part for part in grade_path(submit(**right(component)), examples=examples).components}
    failed = [(check.id, check.message) for check in graded[component].checks if check.status != "passed"]
    assert failed == []
    assert all(part.status == "not_submitted" for name, part in graded.items() if name != component)


def test_distributed_tensors_are_not_whole_parameters(held_to, submit):
    adapters = """
        from torchs_own import sharded as get_fsdp

        def fsdp_on_after_backward(fsdp_model, optimizer):
            pass

        def fsdp_gather_full_params(fsdp_model):
            return dict(fsdp_model.named_parameters())
        """
    held = held_to(submit(adapters, **CONTROLS), "fsdp", "gathers_whole_parameters", examples=2)
    assert held.status == "failed"
    assert "On rank 0 before training, the whole parameter `layers.0.weight` has the shape" in held.message


def test_a_part_that_is_not_implemented_is_not_submitted(grade_path, submit):
    text = right("overhead_model")["adapters"].replace("return math.sqrt(s * w * o)", "raise NotImplementedError")
    (graded,) = grade_path(submit(text), components=["overhead_model"]).components
    assert graded.status == "not_submitted"


@pytest.mark.usefixtures("one_server")
def test_a_failure_is_replayed(grade_path, submit, capsys):
    folder = submit(right("overhead_model")["adapters"].replace("n_b * o", "o"))
    (graded,) = grade_path(folder, components=["overhead_model"]).components
    failed = next(check for check in graded.checks if check.status == "failed")
    case = str(Path(failed.script).with_suffix(".json"))
    assert main(["replay", case]) == 1
    assert failed.message in capsys.readouterr().out
    (folder / "adapters.py").write_text(right("overhead_model")["adapters"], encoding="utf-8")
    assert main(["replay", case]) == 0
    assert "overhead_after_backward  passed" in capsys.readouterr().out


def test_a_file_that_is_no_case_is_refused(tmp_path, capsys):
    (tmp_path / "other.json").write_text('{"component": "overhead_model"}', encoding="utf-8")
    assert main(["replay", str(tmp_path / "other.json")]) == 2
    assert "is no case that this version wrote: give the .json file" in capsys.readouterr().err


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(CASES)
def test_a_case_prints_as_python_survives_json_and_can_be_fed(case):
    assert eval(repr(case), dict(PlainData.classes)) == case  # noqa: S307  our own text
    assert drawn_from_json(json.loads(case.text)) == case
    (numbers,) = {one.numbers for one in COMPONENTS.values() if type(one.simplest) is type(case)}
    assert [len(world) for world in numbers(case, 7)] == list(case.worlds)
    assert all(1 <= world <= 4 for world in case.worlds)
