"""The command line: `pytest-ddp-grade PATH...`, and further commands (see `commands`)."""

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial

from conformance.commands import explain, grade, regrade, replay, rubric
from conformance.commands.options import COMMAND
from conformance.execution import restart
from conformance.grading.report import GRADER_ERROR, HARNESS_ERROR, NOT_GRADED
from conformance.submissions.packages import installed
from pytest_ddp.errors import UsageError

INTERRUPTED = 130
_COMMANDS = {"grade": grade, "explain": explain, "replay": replay, "regrade": regrade, "rubric": rubric}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0: all that is submitted passed; 1: a component failed; 2: misuse, or a submission that cannot be graded; 3: an
    error in the grader; 130: interrupted. With `--out`, 0 means that the results are written, whatever they are.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    return _exit_code(partial(_run, given, restarts=arguments is None))


def resume(kept: int, small: bool) -> int:  # noqa: FBT001  called from text
    """Go on with a command that started itself again."""
    return _exit_code(partial(restart.resume, kept, main, small=small))


def _run(given: list[str], *, restarts: bool) -> int:
    options, unknown = _parser().parse_known_args(given if given and given[0] in _COMMANDS else ["grade", *given])
    if unknown:
        of = "" if options.command == "grade" else f" {options.command}"
        raise UsageError(f"{' '.join(unknown)} is not understood; `{COMMAND}{of} --help` lists the options")
    options.given, options.restarts = given, restarts
    if vars(options).get("packages"):
        sys.path.append(str(installed(options.packages)))  # the ranks have the same path
    return int(options.run(options))


def _exit_code(command: Callable[[], int]) -> int:
    """Run a command and return its exit code, also of what it raises."""
    try:
        return command()
    except UsageError as error:
        sys.stderr.write(f"conformance: {error}\n")
        return NOT_GRADED
    except KeyboardInterrupt:
        sys.stderr.write("conformance: interrupted\n")
        return INTERRUPTED
    except Exception:  # noqa: BLE001  whatever happens, the exit code tells whose fault it is
        sys.stderr.write(f"conformance: {GRADER_ERROR}\n{traceback.format_exc()}")
        return HARNESS_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in _COMMANDS.values():
        command.add(commands)
    return parser
