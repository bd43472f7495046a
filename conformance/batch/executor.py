"""What runs the graders of a course: jobs go in, outcomes come out. Each executor is a module of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, Self

from conformance.batch.archives import FULL
from conformance.batch.entries import Entry
from conformance.batch.record import Record
from pytest_ddp.errors import UsageError


@dataclass(frozen=True)
class Job:
    """One run of the grader on one submission.

    Attributes:
        entry: the submission, as it was handed in.
        record: what is known of it; the executor adds what the run finds.
        components: what this run grades.
        arguments: of the command `grade`, these components among them, but for paths.
        limit: the seconds that the run may take.
        number: how many runs this submission has had with this one.
    """

    entry: Entry
    record: Record
    components: tuple[str, ...]
    arguments: tuple[str, ...]
    limit: float
    number: int = 1

    def folder(self) -> Path:
        """Return what to grade, unpacked where it is an archive.

        Raises:
            UsageError: it must not be unpacked, or cannot be read.
            OSError: the disk is full, for which the submission is not to blame.
        """
        try:
            return self.entry.folder(self.record.folder / "submission").resolve()
        except (OSError, RuntimeError) as error:  # RuntimeError: links that lead to each other
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            raise UsageError(f"{self.entry.path.name} cannot be read: {error}") from None


def grade_command(job_arguments: Sequence[str], submission: Path, part: Path, scripts: Path) -> list[str]:
    """Return the command line of a grader.

    Args:
        job_arguments: the arguments of the job.
        submission: an absolute path.
        part: the file to write, after every component.
        scripts: the folder for scripts of failures.
    """
    return ["grade", str(submission), "--json", str(part), "--repro-dir", str(scripts), *job_arguments]


class Outcome(NamedTuple):
    """How a job ended.

    Attributes:
        kind: the grader has ended; it reached the limit; the submission cannot be unpacked; what ran the grader is
            gone, such as a node of a cluster; the executor was told to stop.
        why: in words, of what is refused or lost.
    """

    kind: Literal["ended", "cut off", "refused", "lost", "stopped"]
    why: str = ""


class BatchExecutor(Protocol):
    """Runs jobs at the same time; a context manager, which leaves no process behind."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def submit(self, job: Job) -> None:
        """Take in a job; do not wait for it."""

    def as_completed(self) -> Iterator[tuple[Job, Outcome]]:
        """Yield each job with its outcome as soon as it has ended, until none is left; more may be submitted."""

    def cancel(self) -> None:
        """End all jobs, also those that run."""
