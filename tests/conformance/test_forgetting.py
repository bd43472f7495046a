"""Many submissions are graded in one process: what ranks saw of a component is kept no longer than its checks need."""

from pathlib import Path

from conformance.execution.executor import Executor

REFERENCE = Path(__file__).parents[2] / "reference" / "adapters.py"


def test_of_a_component_that_is_graded_nothing_is_kept(grade_path, monkeypatch):
    made = []

    def make(*args, **options):
        made.append(Executor(*args, **options))
        return made[0]

    monkeypatch.setattr("conformance.grading.grade.Executor", make)
    grade_path(REFERENCE, components=["overhead_model"], examples=1)
    assert made[0].executions
    assert made[0]._known == {}
