"""`pytest-ddp-grade rubric`: prints the default rubric, or says what is wrong with one."""

import argparse
import sys
from pathlib import Path

from conformance.grading.report import PASSED
from conformance.grading.rubric import default_text, read_rubric


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    rubric = commands.add_parser("rubric", help="print the default rubric, or check one")
    rubric.add_argument("--check", type=Path, metavar="FILE", help="say what is wrong with a rubric")
    rubric.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.check:
        read_rubric(options.check)
        sys.stdout.write(f"{options.check} is a rubric\n")
    else:
        sys.stdout.write(default_text())
    return PASSED
