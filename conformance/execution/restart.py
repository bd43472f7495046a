"""Starts the command again in an interpreter that a zygote can be forked from, before anything of the grade is in it.

Ranks come from that zygote. So neither the command's arguments, the seed among them, nor the environment of the user
may ever have been in its memory: they wait in an unnamed file until it has been forked.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from conformance.execution.fork_servers import HASH_SEEDS, begin_ahead
from conformance.sandbox.zygotes import forkable_environment
from pytest_ddp.errors import UsageError
from pytest_ddp.pool.launcher import interpreter_command


def restart(arguments: Sequence[str], *, small: bool = False) -> NoReturn:
    """Execute this program again; it goes on in `resume`. A `small` grade has one zygote.

    Raises:
        UsageError: this machine has another system than Linux.
    """
    if sys.platform != "linux":
        raise UsageError("pytest-ddp-grade needs Linux")
    sys.stdout.flush()
    sys.stderr.flush()
    sys.path[:] = [os.path.abspath(folder) for folder in sys.path]  # noqa: PTH100  "" is the working directory
    kept = os.memfd_create("pytest-ddp-grade", 0)
    with os.fdopen(kept, "w", encoding="utf-8", closefd=False) as file:
        json.dump({"arguments": list(arguments), "argv": sys.argv, "environment": dict(os.environ)}, file)
    command = interpreter_command(f"from conformance.cli import resume; sys.exit(resume({kept}, {small}))")
    os.execve(sys.executable, command, forkable_environment(os.environ, HASH_SEEDS[0]))  # noqa: S606  itself


def resume(kept: int, main: Callable[[Sequence[str]], int], *, small: bool) -> int:
    """Begin to start ranks, then run the command with the arguments and the environment that `restart` was given."""
    begin_ahead(small=small)
    os.lseek(kept, 0, os.SEEK_SET)
    with os.fdopen(kept, encoding="utf-8") as file:
        given = json.load(file)
    os.environ.clear()
    os.environ.update(given["environment"])
    sys.argv = given["argv"]
    return main(given["arguments"])
