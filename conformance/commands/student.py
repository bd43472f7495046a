"""What differs where a student grades the repository that they stand in: `pytest-ddp-grade`, also with the PATH `.`."""

import argparse
import os
from pathlib import Path

from conformance.grading.rubric import Rubric
from pytest_ddp.errors import UsageError

HERE = "."
PUBLIC_SEED = 336  # two grades of a student show the same; a course's staff take another seed
_RUBRIC = Path("rubric.toml")


def is_student(options: argparse.Namespace) -> bool:
    """Whether the current folder is graded."""
    return [*map(os.path.normpath, options.paths)] in ([], [HERE])


def fill_in(options: argparse.Namespace) -> None:
    """Fill in what a student leaves out: the folder, the public seed, and the course's rubric."""
    options.paths = [HERE]
    options.seed = PUBLIC_SEED if options.seed is None else options.seed
    fill_in_rubric(options)


def fill_in_rubric(options: argparse.Namespace) -> None:
    """Fill in the course's rubric, which may lie in the student's repository."""
    if options.rubric is None and _RUBRIC.is_file():
        options.rubric = _RUBRIC


def hold_extended(options: argparse.Namespace) -> None:
    """Raise UsageError if extended checks are asked for, and left out by another option."""
    if options.small and options.core is False:
        raise UsageError("--small runs core checks alone: leave out --extended, or --small")


def core_only(options: argparse.Namespace, rubric: Rubric) -> bool:
    """Return whether extended checks are left out: a student has no use for them unless they give points."""
    if options.core is None:
        gives_points = any(rules.bonus for rules in rubric.rules.values())
        return options.small or (is_student(options) and not gives_points)
    return bool(options.core or options.small)
