"""`pytest-ddp-grade --watch`: grades the current folder again whenever a Python file in it is saved."""

import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event as Flag
from typing import TYPE_CHECKING, NoReturn, Self

from rich.console import Console
from rich.text import Text
from watchdog.events import (
    DirCreatedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer

from conformance.grading.events import (
    CheckEnded,
    ComponentBegan,
    ComponentEnded,
    Event,
    Reports,
    SubmissionEnded,
)
from conformance.grading.formats.student import show
from conformance.grading.report import PASSED, ComponentReport, Report
from conformance.submissions.location import Location

if TYPE_CHECKING:
    from conformance.grading.grade import Grading

_WRITTEN = [FileClosedEvent, FileCreatedEvent, FileDeletedEvent, FileMovedEvent, DirCreatedEvent, DirMovedEvent]
_LEFT_OUT = (".", "__pycache__")  # so the names of folders begin that are not watched
_FIRST = {"failed": 0, "not_submitted": 1}  # components by their last verdict; the others follow


def grade_on_save(grade: Callable[["Grading"], Generator[Event]], grading: "Grading", location: Location) -> int:
    """Grade, then again whenever a file is saved where a submission imports from; return the exit code after Ctrl-C."""
    watch = Watch(grading, Console())
    scripts = grading.repro_dir or Path("repro")
    ended = False

    def interrupt(*_: object) -> NoReturn:
        nonlocal ended
        ended = True  # Python drops an exception that a finalizer is interrupted by
        saves.wake()
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    with Saves(map(Path, location.import_roots), scripts) as saves, suppress(KeyboardInterrupt):
        signal.signal(signal.SIGINT, interrupt)
        while not ended:
            watch.follow(grade, saves)
            saves.wait()
    signal.signal(signal.SIGINT, before)
    return PASSED


class Saves(FileSystemEventHandler):
    """Notices that a Python file below some folders is saved; use as a context manager."""

    def __init__(self, roots: Iterable[Path], ignored: Path) -> None:
        self._roots, self._ignored = tuple(roots), ignored.resolve()
        self._saved = Flag()
        self._observer = Observer()

    def __enter__(self) -> Self:
        self._observer.start()
        self._look_again()
        return self

    def __exit__(self, *_: object) -> None:
        self._observer.stop()
        self._observer.join()

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Take in that something was written, in a thread of the observer."""
        source, to = (os.fsdecode(path) for path in (event.src_path, event.dest_path))
        if event.is_directory:
            if self._watch(Path(to or source), new=True):
                self._saved.set()
        elif source.endswith(".py") or to.endswith(".py"):
            self._saved.set()

    def __bool__(self) -> bool:
        """Whether a file was saved since `wait` returned."""
        return self._saved.is_set()

    def wake(self) -> None:
        """End `wait`, as if a file had been saved."""
        self._saved.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until a file is saved, if none was since the last time; return whether one is, in these seconds."""
        saved = self._saved.wait(seconds)
        self._saved.clear()
        self._look_again()
        return saved

    def _look_again(self) -> None:
        """Watch the folders that are there now."""
        for root in self._roots:
            self._watch(root)

    def _watch(self, root: Path, *, new: bool = False) -> bool:
        """Watch a folder and those below it; return whether there are Python files in it.

        What watched a folder that was removed works no longer, also if there is a `new` one of its name.
        """
        for emitter in list(self._observer.emitters):
            if not emitter.should_keep_running() or (new and Path(emitter.watch.path).is_relative_to(root)):
                with suppress(KeyError):  # another thread was faster
                    self._observer.unschedule(emitter.watch)
        if new and root.name.startswith(_LEFT_OUT):
            return False
        found = list(folders(root, self._ignored))
        for folder in found:
            with suppress(FileNotFoundError):  # it has just been removed
                self._observer.schedule(self, str(folder), event_filter=_WRITTEN)
        return any(True for folder in found for _ in folder.glob("*.py"))


def folders(root: Path, ignored: Path) -> Iterator[Path]:
    """Yield a folder, and those below it that have Python files, without environments and one that is ignored."""
    for name, inner, files in os.walk(root):
        if "pyvenv.cfg" in files or Path(name) == ignored:
            inner.clear()
            continue
        inner[:] = [folder for folder in inner if not folder.startswith(_LEFT_OUT)]
        if Path(name) == root or any(file.endswith(".py") for file in files):
            yield Path(name)


class Watch:
    """What was found so far, on a screen that is written again as it changes.

    A component that is not graded again yet keeps its last verdict; one that failed is graded before the others.
    """

    def __init__(self, grading: "Grading", console: Console) -> None:
        self._grading, self._console = grading, console
        self._known: dict[str, ComponentReport] = {}

    def follow(self, grade: Callable[["Grading"], Generator[Event]], saves: Saves) -> None:
        """Grade once, and write what is found; stop where a file is saved."""
        reports = Reports()
        with closing(grade(replace(self._grading, components=self._in_order()))) as events:
            for event in events:
                reports(event)
                self._take_in(event, reports)
                if saves:
                    return

    def _in_order(self) -> tuple[str, ...]:
        """Return the names of all components, those that failed last time first."""
        verdict = {name: one.status for name, one in self._known.items()}
        return tuple(sorted(self._grading.components, key=lambda name: _FIRST.get(verdict.get(name, ""), len(_FIRST))))

    def _take_in(self, event: Event, reports: Reports) -> None:
        match event:
            case ComponentBegan(name):
                again = " again; this is the last grade" if name in self._known else ""
                self._write(reports.current, f"Grading {name}{again} ...")
            case CheckEnded(name, check) if check.level == "core" and check.status == "failed":
                self._write(reports.current, f"Grading {name} ...")
            case ComponentEnded(component):
                self._known[component.name] = component
            case SubmissionEnded():
                self._write(reports.current, "Save a file to grade again; Ctrl-C ends.")

    def _write(self, report: Report, going_on: str) -> None:
        """Write the screen again, with the last line about what goes on."""
        self._console.clear()
        shown = replace(report, components=tuple(self._components(report)))
        show(shown, self._console)
        self._console.print(Text(going_on, "dim"))

    def _components(self, report: Report) -> Iterator[ComponentReport]:
        """Yield what is known of each component, in the order of the assignment; nothing of one that nothing is."""
        now = {one.name: one for one in report.components}
        for name in self._grading.components:
            ended = any(check.status != "not_run" for check in now[name].checks)
            if now[name].graded or ended:
                yield now[name]
            elif name in self._known:
                yield self._known[name]
