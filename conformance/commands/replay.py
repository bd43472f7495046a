"""`pytest-ddp-grade replay FILE`: runs a submission again on the scenario that a check failed on."""

import argparse
import sys
from pathlib import Path

from conformance.commands.options import add_import_seconds, add_isolation, add_with, positive
from conformance.execution.fork_servers import fork_servers, ranks_from
from conformance.execution.restart import restart
from conformance.grading.report import FAILED, PASSED
from conformance.submissions.library import Library


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    replay = commands.add_parser("replay", help="run a submission again on the scenario that a check failed on")
    add_with(replay)
    add_isolation(replay)
    add_import_seconds(replay)
    replay.add_argument("case", type=Path, metavar="FILE", help="the .json file beside the script of the failure")
    replay.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    """Hold a submission again to one check, on one scenario or case, and print what is wrong."""
    if options.restarts:
        restart(options.given)
    with fork_servers(options.isolation) as launcher:
        from conformance.reproduction.replay import Replay  # noqa: PLC0415  imports torch, while the servers do too

        wanted = Replay.read(options.case)
        library = wanted.submission if isinstance(wanted.submission, Library) else None
        if library:
            launcher.isolation = "none"  # `verify` trusts a library, which may lie anywhere
        with wanted.located() as location, ranks_from(launcher, location) as ranks:
            result = wanted.run(ranks, location, positive("--import-seconds", options.import_seconds))
    said = [f"{wanted.component}: {wanted.check.id}  {result.status}", result.diagnosis, result.message]
    text = "".join(f"{paragraph}\n" for paragraph in said if paragraph)
    sys.stdout.write(library.renamed(text) if library else text)
    return PASSED if result.status == "passed" else FAILED
