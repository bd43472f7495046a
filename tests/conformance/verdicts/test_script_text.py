"""What scripts that show failures look like: short, flat, with literal data, or a replay that says why it is one."""

import ast
import re
from pathlib import Path

import pytest

import conformance
from conformance.components.registry import COMPONENTS
from conformance.judging.draws import Draws
from conformance.reproduction.files import flat_text
from conformance.reproduction.script import MARKER, Failure
from conformance.scenarios.layers import Linear
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import Group, OptimizerSpec, Scenario, SetOption
from conformance.strategies import Bounds
from conformance.submissions.location import locate

ONE_OF_A_KIND = ["naive_ddp", "ddp_bucketed", *(n for n, one in COMPONENTS.items() if one.contract.kind != "wrapper")]
CONFORMANCE = Path(conformance.__file__).parent
LOCATION = locate("examples/correct")
LARGE = Scenario(model=ModelSpec(100, (Linear(100),)))


def failure_of(component: str, check=None, message="On rank 0, it differs: " + "and so on, " * 100) -> Failure:
    one = COMPONENTS[component]
    return Failure(source=LOCATION, component=one, check=check or one.checks[0], message=message)


def flat(component: str, drawn, check=None) -> tuple[str, str]:
    return flat_text(failure_of(component, check), drawn, 7)


def drawn_of(component: str, check):
    bounds = Bounds(3, bucketed=COMPONENTS[component].contract.takes_bucket_size)
    return Draws(check.scenarios, check.rules_out, bounds, 1, "secret", 2).all()


@pytest.mark.parametrize("component", ONE_OF_A_KIND)
def test_most_scripts_are_flat_and_short_and_all_are_python(component):
    scripts = [0, 0]
    for check in COMPONENTS[component].checks:
        for drawn in drawn_of(component, check):
            text, why = flat(component, drawn, check)
            ast.parse(text)
            scripts[bool(why)] += 1
    # A checkpoint needs two worlds, which are too much for 60 lines.
    assert scripts[False] > 0.3 * sum(scripts) or component == "checkpoint"


def test_no_template_names_a_check():
    """What a script shows follows from the trial, so that a new check needs no line in a template."""
    names = {check.id for one in COMPONENTS.values() for check in one.checks if {*"_["} & {*check.id}}
    names -= {"no_sync", "zero_grad"}  # those are methods, too
    for template in CONFORMANCE.glob("**/script.py.jinja"), CONFORMANCE.glob("reproduction/templates/*.jinja"):
        for path in template:
            words = set(re.findall(r"[\w\[\]]+", path.read_text(encoding="utf-8")))
            assert not words & names, path


def test_a_script_begins_with_what_failed_and_ends_with_how_it_starts_ranks():
    text, _ = flat("naive_ddp", Scenario())
    assert text.startswith(f'"""{MARKER} naive_ddp fails {COMPONENTS["naive_ddp"].checks[0].id}. ')
    assert text.endswith('or print("nothing differs"))\n')


def test_no_two_checks_have_files_of_one_name():
    names = [failure_of(name, check).name for name, one in COMPONENTS.items() for check in one.checks]
    assert len({*names}) == len(names)
    assert all(name.replace("-", "").replace("_", "").isalnum() for name in names)


def test_what_a_script_has_no_lines_for_is_named():
    assert "no lines for gated, peeks" in flat("naive_ddp", Scenario(gated=True, peeks=True))[1]
    assert flat("naive_ddp", Scenario(model=ModelSpec(nested=True)))[1].endswith("nested")
    assert flat("naive_ddp", LARGE) == ("", "a short script has no lines for so many numbers")


def test_numbers_options_and_changes_are_written_out():
    groups = (Group(("layers.0.weight",), {"lr": 0.25}), Group(("layers.0.bias",), {}))
    scenario = Scenario(
        optimizer=OptimizerSpec("AdamW", {"lr": 0.5}, groups), steps=2, schedule=(SetOption(1, "eps", 0.125, 1),)
    )
    text, why = flat("sharded_optimizer", scenario)
    assert not why
    assert "torch.optim.AdamW, lr=0.5)" in text
    assert """{"params": [named[name] for name in ('layers.0.weight',)], **{'lr': 0.25}}""" in text
    assert "for group in [optimizer.param_groups[1]]: group['eps'] = 0.125" in text
    assert '"layers.0.weight": tensor([[' in text
