"""`python -m reference.bench NAME`: run one of the measurements; `--help` lists them.

Each command prints a table with two or three sentences, and writes CSV, JSON and pictures into `bench/NAME`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from reference.bench import report
from reference.bench.benchmark import Benchmark, run
from reference.bench.registry import BENCHMARKS

_WIDTH = 120


def parser() -> argparse.ArgumentParser:
    """The command line: one subcommand for each benchmark."""
    made = argparse.ArgumentParser(prog="python -m reference.bench", description="Measure distributed training.")
    commands = made.add_subparsers(required=True, metavar="NAME")
    for benchmark in BENCHMARKS.values():
        add(commands, benchmark)
    add_report(commands)
    return made


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", benchmark: Benchmark) -> None:
    """Add a benchmark's subcommand."""
    command = commands.add_parser(benchmark.name, help=benchmark.help, description=benchmark.help)
    command.add_argument(
        "--out", type=Path, help=f"folder for CSV, JSON and pictures (default: bench/{benchmark.name})"
    )
    benchmark.add_options(command)
    command.set_defaults(run=lambda options: run(benchmark, options, _console()))


def add_report(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand that runs all benchmarks."""
    about = "Run all benchmarks in a given time and write one report, or verify one."
    command = commands.add_parser("report", help=about, description=about)
    report.add_options(command)
    command.set_defaults(run=lambda options: report.run(options, _console()))


def _console() -> Console:
    """The terminal; in a file or a pipe, lines are wide enough for every table."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and run the benchmark."""
    options = parser().parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    main()
