"""The script of a failure shows the bug, and shows nothing once the submission is right: one of each kind, and more."""

import subprocess
import sys

import pytest
from bug import right
from bugs import BUGS

from conformance.components.registry import COMPONENTS

_REFUSED_BY_THE_RIGHT_ONE = {
    "state_dict_round_trip",
    "options_survive_loading",
    "loading_leaves_the_state_dict",
    "loading_keeps_what_others_keep_there",
    "groups_are_added_after_loading",
}


def _one_of_each_kind():
    """Return, for each thing that a script of a wrapper or an optimizer may show, the first bug that it shows."""
    kinds = {}
    for bug in BUGS:
        shows = next(check.shows for check in COMPONENTS[bug.component].checks if check.id == bug.check)
        if bug.check not in _REFUSED_BY_THE_RIGHT_ONE and COMPONENTS[bug.component].checks[0].id == "runs_to_the_end":
            kinds.setdefault(shows, bug)
    return kinds


_MIXED = next(bug for bug in BUGS if (bug.component, bug.check) == ("sharded_optimizer", "mixed_dtypes"))
_KINDS = _one_of_each_kind() | {"mixed dtypes": _MIXED}


@pytest.mark.long
@pytest.mark.parametrize("bug", [pytest.param(bug, id=kind) for kind, bug in _KINDS.items()])
def test_a_script_tells_the_bug_from_right_code(checked, submit, bug):
    found = checked(submit(**bug.planted()), bug.component, bug.check)
    wrong = _run(found.repro)
    submit(**right(bug.component))
    assert (wrong.returncode, _run(found.repro).stdout) == (1, "nothing differs\n"), wrong.stdout + wrong.stderr


def _run(script):
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=120)
