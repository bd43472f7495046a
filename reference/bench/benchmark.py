"""What makes a benchmark, and how one is run: measure, evaluate, write, show, draw."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from reference.bench import pictures
from reference.bench.method import noise, watch_machine
from reference.bench.result import Raw, Result, write_json
from reference.bench.submission import about_failed
from reference.communication.launch import in_job
from reference.communication.process_group import find_rank_info

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Benchmark:
    """One command. Only `measure` looks at the machine; the rest is computed from what it returned.

    Attributes:
        name: the command's name.
        help: one line for `--help`.
        add_options: adds the command's own options to its parser; `--out` is added for all.
        measure: runs the benchmark. Its raw numbers contain the options that a reader needs to understand them.
        evaluate: computes the table and the sentences from the raw numbers; it leaves the environment empty.
        draw: makes the pictures from the raw numbers, by name; the benchmark's own name if there is only one.
    """

    name: str
    help: str
    add_options: Callable[[ArgumentParser], None]
    measure: Callable[[Namespace], Raw]
    evaluate: Callable[[Raw], Result]
    draw: Callable[[Raw], "Mapping[str, Figure]"]

    def parse(self, arguments: Sequence[str], out: Path) -> Namespace:
        """The options of a command line, without the command's name; `out` is the folder for files."""
        parser = ArgumentParser(prog=self.name)
        self.add_options(parser)
        return parser.parse_args(arguments, Namespace(out=out))

    def result(self, options: Namespace) -> Result:
        """Measure, and evaluate the numbers, with a sentence about noise at the end."""
        return self.evaluated(*self.measured(options))

    def measured(self, options: Namespace) -> tuple[Raw, dict[str, object]]:
        """The raw numbers, and the environment in which they were measured."""
        with watch_machine() as environment:
            raw = self.measure(options)
            return raw, environment().to_json()

    def pictures(self, raw: Raw) -> "Mapping[str, Figure]":
        """The pictures by the names of their files, each of which begins with the benchmark's name."""
        drawn = self.draw(raw)
        return {name if name == self.name else f"{self.name}-{name}": figure for name, figure in drawn.items()}

    def evaluated(self, raw: Raw, environment: Mapping[str, object]) -> Result:
        """The result that follows from these raw numbers, measured in this environment."""
        result = self.evaluate(raw)
        failed = about_failed(raw.get("failed", {}))
        return replace(result, sentences=[*result.sentences, *failed, noise(environment)], environment=environment)


def run(benchmark: Benchmark, options: Namespace, console: Console) -> None:
    """Run a benchmark, print its table, and write its files into `options.out`, or into `bench/NAME`.

    The raw numbers are written first, so that they are not lost if the table cannot be computed. In a torchrun or srun
    job, every rank measures and rank 0 prints and writes.
    """
    raw, environment = benchmark.measured(options)
    if in_job() and find_rank_info(os.environ).rank > 0:
        return
    folder = options.out or Path("bench", benchmark.name)
    write_json(folder / f"{benchmark.name}.json", {"name": benchmark.name, "raw": raw, "environment": environment})
    result = benchmark.evaluated(raw, environment)
    console.print(result.table())
    paths = [*result.write(folder), *write_pictures(benchmark, result, folder, console)]
    console.print("Written: " + ", ".join(map(str, paths)), soft_wrap=True)


def write_pictures(benchmark: Benchmark, result: Result, folder: Path, console: Console) -> list[Path]:
    """Draw a result's pictures into a folder; without matplotlib, print what to install. Returns their paths."""
    if not pictures.can_draw():
        console.print(pictures.MISSING)
        return []
    drawn = benchmark.pictures(result.raw)
    return [pictures.save(figure, folder / f"{name}.svg") for name, figure in drawn.items()]
