"""A simulated class: sixty submissions with none to three planted bugs, each for an aspect of its own.

One bug that leaves the essential aspects whole costs at most a third of the component. Among submissions that lack an
essential aspect, and among those that do not, more aspects right means more points; an aspect may be right in part.
"""

import sys
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "planted"))
from bug import Bug, right
from bugs import BUGS

from conformance.components.registry import COMPONENTS

NAMES = ("naive_ddp", "ddp_individual_parameters", "ddp_bucketed", "sharded_optimizer", "fsdp")
BUGS_PER_SUBMISSION = (0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3)
_FEW = 0.1


def aspect_of(bug: Bug) -> str | None:
    """Return the aspect that a bug's check belongs to; None for an extended check."""
    return next((one.name for one in COMPONENTS[bug.component].aspects if bug.check in one.checks), None)


def composed(bugs: list[Bug], component: str) -> dict[str, str]:
    """Return the files of a right submission with all these bugs; no files if they are in one another's lines."""
    texts = right(component)
    for bug in bugs:
        if not any(bug.old in text for text in texts.values()):
            return {}
        texts = {name: text.replace(bug.old, bug.new) for name, text in texts.items()}
    return texts


def submissions(component: str) -> list[tuple[list[Bug], dict[str, str]]]:
    """Return twelve submissions: the single bugs are for as many aspects as there are."""
    random = Random(component)  # noqa: S311  the same class each time
    by_aspect: dict[str, list[Bug]] = {}
    for bug in BUGS:
        if bug.component == component and (name := aspect_of(bug)):
            by_aspect.setdefault(name, []).append(bug)
    single = [random.choice(by_aspect[name]) for name in random.sample(sorted(by_aspect), len(by_aspect))]
    found: list[tuple[list[Bug], dict[str, str]]] = []
    for count in BUGS_PER_SUBMISSION:
        texts: dict[str, str] = {}
        while not texts:
            names = random.sample(sorted(by_aspect), min(count, len(by_aspect)))
            bugs = [single.pop()] if count == 1 and single else [random.choice(by_aspect[name]) for name in names]
            texts = composed(bugs, component)
        found.append((bugs, texts))
    return found


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("component", NAMES)
def test_who_has_more_aspects_right_has_more_points(component, grade_path, tmp_path):
    graded, dear = [], []
    for number, (bugs, texts) in enumerate(submissions(component)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in texts.items():
            (folder / f"{name}.py").write_text(text, encoding="utf-8")
        (report,) = grade_path(folder, components=[component], core=True, examples=5).components
        right_aspects = sum(one.points / one.aspect.points for one in report.marks)
        limited = any(one.status == "missing" for one in report.marks)
        graded.append((report.points, right_aspects, limited, [str(bug) for bug in bugs]))
        whole = all(one.points == one.aspect.points for one in report.marks if one.aspect.essential)
        if len(bugs) == 1 and whole and report.points < report.max_points * 2 / 3:
            dear.append(graded[-1])
    assert not dear
    pairs = [(one, other) for one, other in combinations(graded, 2) if one[2] == other[2] and one[1] != other[1]]
    disagree = [pair for pair in pairs if (pair[0][1] - pair[1][1]) * (pair[0][0] - pair[1][0]) < 0]
    assert len(disagree) <= _FEW * len(pairs), disagree
