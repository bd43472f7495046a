"""Grades a course whose graders are simulated: what the process that grades does for each submission, and nothing else.

    python benchmarks/simulated_course.py FOLDER SUBMISSIONS

Each simulated run writes a report in which one check in five fails, in one of forty ways. Prints, as JSON, the CPU
seconds of a grade and of a second one that finds everything graded, the peak memory, and the bytes of the results.
"""

import json
import resource
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Self

from conformance.batch.course import Course, grade_course
from conformance.batch.entries import entries
from conformance.batch.executor import Job, Outcome
from conformance.batch.progress import CourseProgress
from conformance.grading.formats import to_json_text
from conformance.grading.grade import Grading, planned
from conformance.grading.report import CheckReport, ComponentReport

COMPONENTS = ("ddp_individual_parameters", "ddp_bucketed", "sharded_optimizer")
WAYS, FAILS_ONE_IN = 40, 5
ADAPTERS = "def get_ddp(module):\n    return module\n" * 30


class SimulatedExecutor:
    """An executor (`conformance.batch.executor`) whose jobs end at once."""

    def __init__(self, parts: list[str]) -> None:
        self._parts = parts
        self._jobs: deque[Job] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left."""

    def submit(self, job: Job) -> None:
        """Take in a job."""
        self._jobs.append(job)

    def as_completed(self) -> Iterator[tuple[Job, Outcome]]:
        """Write the report of each job, and yield it."""
        for number in range(len(self._jobs)):
            job = self._jobs.popleft()
            job.record.next_part().write_text(self._parts[number % len(self._parts)], encoding="utf-8")
            yield job, Outcome("ended")

    def cancel(self) -> None:
        """Nothing runs."""


class Silent(CourseProgress):
    """Follows the grade without a line for each submission."""

    def _say(self, words: str) -> None:
        """Say nothing."""


def graded_part(grading: Grading, way: int) -> str:
    """Return the report of a run in which checks fail in a way."""
    report = planned("simulated", grading)
    components = [graded(component, way) for component in report.components]
    return to_json_text([replace(report, components=tuple(components), finished=True)])


def graded(component: ComponentReport, way: int) -> ComponentReport:
    """Return a component that is graded."""
    checks = [
        ended(check, way, fails=(number + way) % FAILS_ONE_IN == 0) for number, check in enumerate(component.checks)
    ]
    return replace(component, checks=tuple(checks), graded=True)


def ended(check: CheckReport, way: int, *, fails: bool) -> CheckReport:
    """Return a check that has ended."""
    if not fails:
        return replace(check, status="passed", examples=10, seconds=0.5)
    message = (
        f"step 2, parameter layers.{way}.weight on rank 1: the largest difference is 0.25\n" + "  in a line\n" * 20
    )
    return replace(check, status="failed", examples=3, seconds=1.5, message=message, diagnosis=f"known mistake {way}")


def main() -> None:
    """Grade and measure."""
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    for number in range(count):
        place = folder / "handed_in" / f"student{number:06}"
        place.mkdir(parents=True)
        (place / "adapters.py").write_text(f"{ADAPTERS}# {number}\n", encoding="utf-8")
    grading = Grading(seed=1, world_size=2, components=COMPONENTS, examples=10)
    parts = [graded_part(grading, way) for way in range(WAYS)]
    course = Course(entries(folder / "handed_in"), folder / "out", grading, (), (), 600)
    seconds = []
    for _ in range(2):
        began = time.process_time()
        results = grade_course(course, SimulatedExecutor(parts), Silent())
        seconds.append(time.process_time() - began)
        if not all(one.report.finished for one in results):
            raise SystemExit("a submission is not graded")
    sizes = {
        "records": sum(
            path.stat().st_size
            for path in chain((folder / "out").rglob("*.json"), (folder / "out").rglob("report.html"))
        ),
        "class_page": (folder / "out" / "class.html").stat().st_size,
    }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"grade": seconds[0], "resume": seconds[1], "peak": peak, **sizes}))


if __name__ == "__main__":
    main()
