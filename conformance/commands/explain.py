"""`pytest-ddp-grade explain NAME`: says what a check or a component requires, why, and what usually goes wrong."""

import argparse

from rich.console import Console, Group

from conformance.grading.report import PASSED


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    explain = commands.add_parser("explain", help="say what a check or a component requires, and what goes wrong")
    about = "a component, a check, or both, as reports name them: `ddp_bucketed: sent_once`"
    explain.add_argument("names", nargs="+", metavar="NAME", help=about)
    explain.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from conformance.explanation.text import explained  # noqa: PLC0415  imports torch with the components

    Console().print(Group(*explained(options.names)))
    return PASSED
