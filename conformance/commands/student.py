"""What differs where a student grades the repository that they stand in: `pytest-ddp-grade`, also with the PATH `.`."""

import argparse
from pathlib import Path

HERE = "."
PUBLIC_SEED = 336  # two grades of a student show the same; a course's staff take another seed
_RUBRIC = Path("rubric.toml")


def is_student(options: argparse.Namespace) -> bool:
    """Whether the current folder is graded."""
    return options.paths in ([], [HERE])


def fill_in(options: argparse.Namespace) -> None:
    """Fill in what a student leaves out: the folder, the public seed, core checks alone, and the course's rubric."""
    options.paths = [HERE]
    options.seed = PUBLIC_SEED if options.seed is None else options.seed
    options.core = options.core is not False
    if options.rubric is None and _RUBRIC.is_file():
        options.rubric = _RUBRIC
