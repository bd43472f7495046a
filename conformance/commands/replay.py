"""`pytest-ddp-grade replay FILE`: runs a submission again on the scenario that a check failed on."""

import argparse
import sys
from pathlib import Path

from conformance.commands.options import add_with
from conformance.execution.fork_servers import fork_servers, ranks_from
from conformance.grading.report import FAILED, PASSED


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    replay = commands.add_parser("replay", help="run a submission again on the scenario that a check failed on")
    add_with(replay)
    replay.add_argument("case", type=Path, metavar="FILE", help="the .json file beside the script of the failure")
    replay.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    """Hold a submission again to one check, on one scenario or case, and print what is wrong."""
    with fork_servers() as launcher, ranks_from(launcher) as ranks:
        from conformance.reproduction.replay import Replay  # noqa: PLC0415  imports torch, while the servers do too

        wanted = Replay.read(options.case)
        result = wanted.run(ranks)
    said = [f"{wanted.component}: {wanted.check.id}  {result.status}", result.diagnosis, result.message]
    sys.stdout.write("".join(f"{paragraph}\n" for paragraph in said if paragraph))
    return PASSED if result.status == "passed" else FAILED
