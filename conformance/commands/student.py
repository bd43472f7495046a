"""What differs where a student grades the repository that they stand in: `pytest-ddp-grade`, also with the PATH `.`."""

import argparse
from pathlib import Path

from conformance.commands.options import components
from conformance.grading.rubric import Rubric

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


def course_of(options: argparse.Namespace, rubric: Rubric) -> tuple[str, ...]:
    """Return the components that the options or the rubric name; if neither does, all that have functions of their own.

    Raise UsageError if there is none of a name.
    """
    if options.components is not None:
        return components(options.components)
    from conformance.components.registry import COMPONENTS  # noqa: PLC0415  imports torch

    return tuple(name for name in COMPONENTS if name in rubric.aspects) or _with_own_functions()


def named(course: tuple[str, ...]) -> bool:
    """Whether somebody has named the components of a course."""
    return course != _with_own_functions()


def _with_own_functions() -> tuple[str, ...]:
    """Return the components that the assignment asks for, each of which has functions of its own.

    A pair has none: the assignment does not ask for a submission's wrapper and its optimizer together.
    """
    from conformance.components.registry import BY_DEFAULT, COMPONENTS  # noqa: PLC0415  imports torch

    return tuple(name for name in BY_DEFAULT if COMPONENTS[name].contract.kind != "pair")
