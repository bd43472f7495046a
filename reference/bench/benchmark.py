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
from reference.bench.result import Raw, Result

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
        draw: makes the pictures from the raw numbers; the keys become names of files.
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
        with watch_machine() as environment:
            raw = self.measure(options)
            return self.evaluated(raw, environment().to_json())

    def evaluated(self, raw: Raw, environment: Mapping[str, object]) -> Result:
        """The result that follows from these raw numbers, measured in this environment."""
        result = self.evaluate(raw)
        return replace(result, sentences=[*result.sentences, noise(environment)], environment=environment)


def run(benchmark: Benchmark, options: Namespace, console: Console) -> None:
    """Run a benchmark, print its table, and write its files into `options.out`, or into `bench/NAME`.

    In a torchrun job, every rank measures and rank 0 prints and writes.
    """
    result = benchmark.result(options)
    if os.environ.get("RANK", "0") == "0":
        console.print(result.table())
        folder = options.out or Path("bench", benchmark.name)
        paths = [*result.write(folder), *write_pictures(benchmark, result, folder, console)]
        console.print("Written: " + ", ".join(map(str, paths)), soft_wrap=True)


def write_pictures(benchmark: Benchmark, result: Result, folder: Path, console: Console) -> list[Path]:
    """Draw a result's pictures into a folder; without matplotlib, print what to install. Returns their paths."""
    if not pictures.can_draw():
        console.print(pictures.MISSING)
        return []
    return [pictures.save(figure, folder / f"{name}.svg") for name, figure in benchmark.draw(result.raw).items()]
