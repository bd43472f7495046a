"""`pytest-ddp-grade explain NAME`: says what a check or a component requires, why, and what usually goes wrong."""

import argparse
from dataclasses import replace

from rich.console import Console, Group

from conformance.commands.options import add_rubric, rubric_of
from conformance.commands.student import fill_in_rubric
from conformance.grading.report import PASSED


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    explain = commands.add_parser("explain", help="say what a check or a component requires, and what goes wrong")
    about = "a component, a check, or both, as reports name them: `ddp_bucketed: sent_once`"
    explain.add_argument("names", nargs="+", metavar="NAME", help=about)
    add_rubric(explain)
    explain.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from conformance.components.registry import COMPONENTS  # noqa: PLC0415  imports torch
    from conformance.explanation.text import Course, explained  # noqa: PLC0415  imports torch with the components

    fill_in_rubric(options)
    rubric = rubric_of(options)
    components = {name: replace(one, aspects=rubric.aspects_of(name, one.aspects)) for name, one in COMPONENTS.items()}
    course = Course(components, {name: rubric.rules_of(name).bonus for name in COMPONENTS})
    Console().print(Group(*explained(options.names, course)))
    return PASSED
