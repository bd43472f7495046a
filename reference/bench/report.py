"""`report`: all benchmarks in a given time, as one report in HTML and Markdown with a receipt.

    python -m reference.bench report --minutes 10
    python -m reference.bench report --verify bench/report/receipt.json

Each benchmark runs at the largest of a few sizes that fits into its share of the time that is left, and leaves enough
for all others at their smallest. The seconds of the sizes are estimates for two quiet cores; if the machine is slower,
later benchmarks get smaller.
"""

import json
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from reference.bench import receipt, verification
from reference.bench.benchmark import Benchmark, write_pictures
from reference.bench.registry import BENCHMARKS
from reference.bench.report_pages import About, Section, html_page, markdown_page
from reference.bench.result import Result
from reference.communication.launch import in_job

_SECONDS = 60.0  # of a benchmark whose time is not known


@dataclass(frozen=True)
class Size:
    """A command line of a benchmark, and about how many seconds it takes on two quiet cores."""

    seconds: float
    arguments: str = ""


_SIZES: dict[str, list[Size]] = {  # the largest first; the defaults are empty
    "roofline": [Size(35), Size(11, "--width 512 --elements 8000000 --seconds 0.3")],
    "all-reduce": [
        Size(115),
        Size(40, "--megabytes 0.001 0.01 0.1 1 10 100 --seconds 1"),
        Size(13, "--world-sizes 2 --megabytes 0.001 0.1 1 10 --seconds 0.5"),
    ],
    "ddp": [Size(90), Size(45, "--models 64x4 128x4 --seconds 35"), Size(18, "--models 64x2 --seconds 8")],
    "buckets": [Size(65), Size(16, "--model 64x2 --points 6 --seconds 4")],
    "trace": [Size(40), Size(14, "--model 64x1")],
    "memory": [Size(60), Size(13, "--model 64x2")],
    "step": [Size(75), Size(13, "--model 64x2 --rounds 5")],
    "models": [Size(60), Size(14, "--seconds 0.2")],
}


def sizes(name: str) -> list[Size]:
    """The sizes of a benchmark, the largest first."""
    return _SIZES.get(name, [Size(_SECONDS)])


def choose(names: Sequence[str], left: float, slowness: float) -> Size | None:
    """The size at which the first of these benchmarks runs; None if there is no time for it.

    It may take its share of the time, if that leaves enough for the others at their smallest.

    Args:
        names: the benchmarks that have not run yet.
        left: seconds for all of them.
        slowness: how many times longer than on two quiet cores the benchmarks took so far.
    """
    wanted = [sizes(name)[0].seconds for name in names]
    share = left * wanted[0] / sum(wanted)
    spare = left - slowness * sum(sizes(name)[-1].seconds for name in names[1:])
    first = sizes(names[0])
    fitting = [size for size in first if size.seconds * slowness <= min(share, spare)]
    smallest = first[-1]
    return fitting[0] if fitting else smallest if smallest.seconds * slowness <= left else None


def run_all(
    benchmarks: Mapping[str, Benchmark], seconds: float, run: Callable[[Benchmark, str], Result]
) -> tuple[list[Section], dict[str, str]]:
    """Run benchmarks one after the other at sizes that fit into the time.

    Args:
        benchmarks: by name.
        seconds: for all of them.
        run: runs one benchmark with a command line.

    Returns:
        The results with their command lines, and why benchmarks are missing, by name.
    """
    began = time.monotonic()
    sections, missing = list[Section](), dict[str, str]()
    names, planned, spent = list(benchmarks), 0.0, 0.0
    for index, name in enumerate(names):
        size = choose(
            names[index:], seconds - (time.monotonic() - began), max(1.0, spent / planned if planned else 1.0)
        )
        if size is None:
            missing[name] = "no time was left; give more --minutes"
            continue
        start = time.monotonic()
        try:
            sections.append(Section(size.arguments, run(benchmarks[name], size.arguments)))
        except KeyboardInterrupt:
            missing |= dict.fromkeys(names[index:], "it was interrupted")
            break
        except Exception as error:  # noqa: BLE001  # a report has the other benchmarks, whatever one raises
            missing[name] = f"it failed: {_last_line(error)}"
        planned, spent = planned + size.seconds, spent + time.monotonic() - start
    return sections, missing


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else repr(error)


def write(folder: Path, sections: Sequence[Section], about: About, console: Console) -> list[Path]:
    """Write tables, raw numbers, pictures, the receipt and the report into a folder. Returns the report's paths."""
    _remove_earlier(folder)
    files: list[Path] = []
    for section in sections:
        table, _ = section.result.write(folder)
        files += [table, *write_pictures(BENCHMARKS[section.result.name], section.result, folder, console)]
    made = receipt.make(
        {section.result.name: section.result for section in sections},
        {path.name: path for path in files},
        about.to_json(),
    )
    text = json.dumps(made, indent=1)
    (folder / "receipt.json").write_text(text, encoding="utf-8")
    pages = {"report.md": markdown_page, "report.html": html_page}
    for name, page in pages.items():
        (folder / name).write_text(page(about, sections, made, folder), encoding="utf-8")
    return [folder / name for name in (*pages, "receipt.json")]


def _remove_earlier(folder: Path) -> None:
    """Remove the files of the report that is in the folder, as its receipt names them: they show other numbers."""
    with suppress(OSError, ValueError, KeyError, TypeError):  # there is none
        for name in json.loads((folder / "receipt.json").read_text(encoding="utf-8"))["files"]:
            (folder / Path(name).name).unlink(missing_ok=True)


# The command


def add_options(command: ArgumentParser) -> None:
    """Add the options of this command."""
    command.add_argument("--minutes", type=float, default=10.0, help="time for all benchmarks")
    command.add_argument("--only", nargs="+", choices=list(BENCHMARKS), help="benchmarks to run (default: all)")
    command.add_argument("--out", type=Path, default=Path("bench", "report"), help="folder (default: bench/report)")
    command.add_argument(
        "--verify", type=Path, metavar="FILE", help="check a receipt, or the report beside it, instead"
    )


def run(options: Namespace, console: Console) -> None:
    """Make a report, or verify one.

    Raises:
        SystemExit: the report that is verified does not follow from its raw numbers, or a benchmark failed, or this is
            a rank of a job.
    """
    if options.verify is not None:
        raise SystemExit(verify(options.verify, console))
    if in_job():
        raise SystemExit("report starts ranks for each benchmark: run it without torchrun or srun")
    benchmarks = {name: BENCHMARKS[name] for name in options.only or BENCHMARKS}
    options.out.mkdir(parents=True, exist_ok=True)
    sections, missing = run_all(benchmarks, options.minutes * 60, lambda one, line: _run_one(one, line, console))
    about = About(datetime.now(UTC).isoformat(timespec="seconds"), options.minutes, _lines(sections), missing)
    for path in write(options.out, sections, about, console):
        console.print(f"Written: {path}", soft_wrap=True)
    if any(reason.startswith("it failed") for reason in missing.values()):
        raise SystemExit("\n".join(f"{name} is missing: {reason}" for name, reason in missing.items()))


def _lines(sections: Sequence[Section]) -> dict[str, str]:
    return {section.result.name: section.arguments for section in sections}


def _run_one(benchmark: Benchmark, arguments: str, console: Console) -> Result:
    """Run a benchmark. What it writes besides its result is thrown away: Chrome traces have megabytes."""
    console.print(f"[bold]{benchmark.name}[/bold] {arguments}")
    with tempfile.TemporaryDirectory() as scratch:
        result = benchmark.result(benchmark.parse(arguments.split(), Path(scratch)))
    console.print(result.table())
    return result


def verify(file: Path, console: Console) -> int:
    """Print what a receipt's check finds. Returns 0 if the report follows from its raw numbers, else 1."""
    findings = verification.verify(file)
    for finding in findings:
        mark = "[green]right[/green]" if finding.is_right else "[red]wrong[/red]"
        console.print(f"{'[yellow]note[/yellow]' if finding.is_note else mark}: {finding.text}", soft_wrap=True)
    return 0 if all(finding.is_right or finding.is_note for finding in findings) else 1
