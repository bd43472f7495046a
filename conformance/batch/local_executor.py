"""Runs the jobs of a course on this machine: a thread for each job waits for a grader that a warm process forks."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from queue import SimpleQueue
from threading import Event
from typing import Self

from conformance.batch.executor import Job, Outcome, grade_command
from conformance.batch.graders import Graders, WarmProcess
from conformance.batch.record import SCRIPTS, Record
from conformance.grading.grade import Grading
from pytest_ddp.errors import UsageError


class LocalExecutor:
    """An executor (see `executor.BatchExecutor`) for this machine.

    Args:
        grading: how submissions are graded.
        jobs: how many run at the same time.
        began: is called when a job begins, from its thread.
        small: whether memory is scarce.
        warm: the process that forks graders, if it has been started already.
    """

    def __init__(
        self,
        grading: Grading,
        jobs: int,
        began: Callable[[Record], None],
        *,
        small: bool = False,
        warm: WarmProcess | None = None,
    ) -> None:
        self._graders = Graders(grading, small=small, warm=warm)
        self._threads = ThreadPoolExecutor(jobs)
        self._began = began
        self._stop = Event()
        self._ended: SimpleQueue[tuple[Job, Future[Outcome]]] = SimpleQueue()
        self._left = 0

    def __enter__(self) -> Self:
        self._graders.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        self._graders.__exit__()

    def submit(self, job: Job) -> None:
        """Take in a job; do not wait for it."""
        self._left += 1
        self._threads.submit(self._run, job).add_done_callback(lambda future: self._ended.put((job, future)))

    def as_completed(self) -> Iterator[tuple[Job, Outcome]]:
        """Yield each job with its outcome as soon as it has ended, until none is left; more may be submitted."""
        while self._left:
            job, future = self._ended.get()
            self._left -= 1
            yield job, Outcome("stopped") if future.cancelled() else future.result()

    def cancel(self) -> None:
        """End all jobs, also those that run."""
        self._stop.set()
        self._threads.shutdown(cancel_futures=True)

    def _run(self, job: Job) -> Outcome:
        self._began(job.record)
        try:
            folder = job.folder()
        except UsageError as error:
            return Outcome("refused", str(error))
        record = job.record
        command = grade_command(job.arguments, folder, record.next_part(), record.folder / SCRIPTS)
        with closing(self._graders.run(command, record.folder / "log.txt", record.temporary, job.limit)) as run:
            for ended in run:
                if self._stop.is_set():
                    return Outcome("stopped")
                if ended:
                    return Outcome("ended")
        return Outcome("cut off")
