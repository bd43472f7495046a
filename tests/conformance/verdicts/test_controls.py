"""Right code passes, however unusual it is. `ci/controls` grades all of it."""

import pytest
from accepted import PAGE
from way import CONTROLS, accusations
from ways import WAYS

from conformance.components.registry import COMPONENTS


@pytest.mark.parametrize("way", WAYS[2:3], ids=str)  # a wrapper
def test_an_unusual_way_passes(grade_path, submit, way):
    report = grade_path(submit(way.adapters, **CONTROLS), components=[way.component], examples=2)
    assert accusations(way, report) == {}


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_each_check_that_a_way_is_not_held_to_exists(way):
    assert set(way.not_held_to) <= {check.id for check in COMPONENTS[way.component].checks}


def test_the_page_lists_every_way():
    assert PAGE.lists_all()
