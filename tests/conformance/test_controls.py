"""Right implementations pass, however unusual they are: nobody is accused wrongly."""

import re
from pathlib import Path

import pytest
from way import CONTROLS, accusations
from ways import WAYS

from conformance.components.registry import COMPONENTS


@pytest.mark.parametrize("way", WAYS[2::16], ids=str)  # wrappers, one of them torch's own, and optimizers
def test_an_unusual_way_passes(grade_path, submit, way):
    report = grade_path(submit(way.adapters, **CONTROLS), components=[way.component], examples=2)
    assert accusations(way, report) == {}


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_a_way_is_not_held_to_is_there(way):
    assert set(way.lacks) <= {check.id for check in COMPONENTS[way.component].checks}


def test_the_page_has_every_way():
    page = (Path(__file__).parents[2] / "docs" / "controls.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \|", page, re.MULTILINE)
    assert [f"{name} as {component}" for component, name in rows] == [str(way) for way in WAYS]
