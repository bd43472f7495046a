"""Grades a course of right submissions, and measures what that costs: side by side without and with sandboxes.

    python benchmarks/course.py [--submissions 8] [--jobs 2] [--tiny 300]

Prints, for each isolation: submissions in a minute, seconds of CPU time for each, the share of them in the submissions'
ranks, and the most memory (PSS) of all processes together. With `--tiny N`: grades N submissions of one small
component, and prints what the processes hold after a tenth of them and at the end.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

RIGHT = Path(__file__).parents[1] / "examples" / "correct"
OFFICIAL = "ddp_individual_parameters,ddp_bucketed,sharded_optimizer"
TINY = """
def ddp_overhead(s, w, o, n_b): return s / w / n_b + n_b * o
def optimal_bucket_size(s, w, o): return (s * w * o) ** 0.5
"""
RANKS = "conformance.sandbox.zygote"  # in the command line of the processes that ranks are forked from, and of ranks
LOOK_SECONDS, WEIGH_EVERY = 0.1, 20


@dataclass
class Seen:
    """What the processes of a course have used.

    Attributes:
        cpu: seconds of CPU time, by process and whether it is a rank or what ranks are forked from.
        pss: the most bytes of memory of all processes together, shared pages counted once.
        looks: how many times they were looked at.
        refused: whether the memory of some may not be seen: ranks in a sandbox, unless this is root.
    """

    cpu: dict[tuple[int, float, bool], float] = field(default_factory=dict)
    pss: int = 0
    looks: int = 0
    refused: bool = False

    def look(self, course: psutil.Process) -> None:
        """Look at all processes of a course once."""
        weighed, self.looks = 0, self.looks + 1
        for process in _tree(course):
            with suppress(psutil.NoSuchProcess):
                with process.oneshot():
                    key = (process.pid, process.create_time(), RANKS in " ".join(process.cmdline()))
                    times = process.cpu_times()
                self.cpu[key] = times.user + times.system
                try:
                    weighed += process.memory_full_info().pss if self.looks % WEIGH_EVERY == 0 else 0
                except psutil.AccessDenied:
                    self.refused = True
        self.pss = max(self.pss, weighed)

    def seconds(self, *, in_ranks: bool) -> float:
        """Return the CPU time of ranks, or of all other processes."""
        return sum(seconds for (*_, is_rank), seconds in self.cpu.items() if is_rank is in_ranks)


def _tree(course: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [course, *course.children(recursive=True)]
    return []


def hand_in(folder: Path, number: int, *, tiny: bool) -> None:
    """Write submissions."""
    for one in range(number):
        place = folder / f"student{one:03}"
        if tiny:
            place.mkdir(parents=True)
            (place / "adapters.py").write_text(f"{TINY}# {one}\n", encoding="utf-8")
        else:
            shutil.copytree(RIGHT, place)


def grade(folder: Path, out: Path, options: list[str], look: Callable[[psutil.Process], None]) -> float:
    """Grade a course and look at its processes again and again; return the seconds that it takes."""
    command = [sys.executable, "-m", "conformance", "grade", str(folder), "--out", str(out), "--seed", "1", "--core"]
    began = time.monotonic()
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL) as run:
        course = psutil.Process(run.pid)
        while run.poll() is None:
            look(course)
            with suppress(subprocess.TimeoutExpired):
                run.wait(LOOK_SECONDS)
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {run.returncode}")
    return time.monotonic() - began


def costs(submissions: int, jobs: int) -> Table:
    """Return a table of what right submissions of the official components cost."""
    table = Table("isolation", "in a minute", "CPU s each", "outside of ranks", "memory")
    for isolation in ("none", "require", "none", "require"):
        with tempfile.TemporaryDirectory() as folder:
            hand_in(Path(folder, "course"), submissions, tiny=False)
            seen = Seen()
            options = ["--components", OFFICIAL, "--jobs", str(jobs), "--isolation", isolation]
            seconds = grade(Path(folder, "course"), Path(folder, "out"), options, seen.look)
        outside, inside = seen.seconds(in_ranks=False), seen.seconds(in_ranks=True)
        each, share = (outside + inside) / submissions, outside / (outside + inside)
        row = (
            f"{submissions / seconds * 60:.1f}",
            f"{each:.1f}",
            f"{share:.0%}",
            "not known" if seen.refused else f"{seen.pss / 1e9:.2f} GB",
        )
        table.add_row(isolation, *row)
    return table


def growth(submissions: int, jobs: int) -> Table:
    """Return a table of what lasting processes hold after a tenth of many small submissions, and at the end."""
    held: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        hand_in(Path(folder, "course"), submissions, tiny=True)
        out = Path(folder, "out")

        def look(course: psutil.Process) -> None:
            done = len(list(out.glob("*/report.html")))
            if done in {submissions // 10, submissions - 1}:
                for what, bytes_held, files in _held(course):
                    held[what].append((done, bytes_held, files))

        options = ["--components", "overhead_model", "--max-examples", "1", "--jobs", str(jobs)]
        grade(Path(folder, "course"), out, options, look)
    table = Table("process", *(f"{what} after {share}" for share in ("a tenth", "all") for what in ("memory", "files")))
    for what, looks in held.items():
        ends = [[one for one in looks if one[0] == done] for done in (submissions // 10, submissions - 1)]
        cells = [f(end) for end in ends for f in (_memory, _files)]
        table.add_row(what, *cells)
    return table


def _held(course: psutil.Process) -> Iterator[tuple[str, int, int]]:
    """Yield the lasting processes of a course with their memory and open files, and how many processes there are."""
    tree = _tree(course)
    lasting = [course, *course.children()]
    for number, process in enumerate(lasting):
        with suppress(psutil.NoSuchProcess):
            name = "the course" if not number else "what forks graders"
            yield name, process.memory_full_info().uss, process.num_fds()
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            if RANKS in " ".join(process.cmdline()) and process.ppid() in {one.pid for one in lasting}:
                yield "what forks ranks", process.memory_full_info().uss, process.num_fds()
    yield "all: processes instead of files", 0, len(tree)


def _memory(looks: list[tuple[int, int, int]]) -> str:
    return f"{max((held for _, held, _ in looks), default=0) / 1e6:.0f} MB"


def _files(looks: list[tuple[int, int, int]]) -> str:
    return f"{max((files for *_, files in looks), default=0)}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure what a course costs.")
    parser.add_argument("--submissions", type=int, default=8, metavar="N")
    parser.add_argument("--jobs", type=int, default=2, metavar="N")
    parser.add_argument("--tiny", type=int, metavar="N", help="grade so many small submissions instead")
    options = parser.parse_args()
    found = growth(options.tiny, options.jobs) if options.tiny else costs(options.submissions, options.jobs)
    Console(width=100).print(found)


if __name__ == "__main__":
    main()
