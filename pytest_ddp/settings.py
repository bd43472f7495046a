"""The settings of a run: the command line wins over the environment, and the environment over the ini file."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_ddp.errors import UsageError
from pytest_ddp.schedule_text import parse_schedule

if TYPE_CHECKING:
    import pytest

DEVICES = ("cpu", "cuda", "auto")
SIMULATED = "sim"
BACKENDS = ("gloo", "nccl", "mpi", "ucc", SIMULATED)
LEAKS = ("warn", "error", "off")
LAUNCHERS = ("here", "ray")


@dataclass(frozen=True)
class Settings:
    """The defaults of every distributed test, and what the whole run must fulfil.

    Attributes:
        world_size: the world sizes; a test that sets none runs once per size.
        backend: the torch.distributed backend; None chooses it by the device.
        device: "cpu", "cuda", or "auto" for CUDA if there are enough GPUs.
        timeout: seconds that each phase of a test may take.
        seed: the number from which the seeds of all tests are derived.
        leaks: how to report what a test left behind: "warn", "error" or "off".
        leaks_ignore: patterns for the names of leaks that are neither restored nor reported.
        strict: whether a test that this machine cannot run fails instead of being skipped.
        require_cuda: the number of GPUs without which the run does not start.
        min_executed: the number of distributed tests below which the run fails.
        pdb_rank: the rank that gets the terminal for a debugger; None if none is named.
        launcher: "here" for ranks on this machine, or in the job that pytest runs in; "ray" for ranks on Ray nodes.
        ray_ranks: how many ranks each Ray node has; one number for each node.
        ray_address: the address of the Ray cluster; None for the one that Ray finds.
        adopt: the names of base classes of other harnesses; tests of classes derived from them run on ranks.
        schedule: the choices of the schedule for every test on simulated ranks; None leaves them to the tests.
    """

    world_size: tuple[int, ...] = (2,)
    backend: str | None = None
    device: str = "cpu"
    timeout: float = 60.0
    seed: int = 0
    leaks: str = "warn"
    leaks_ignore: tuple[str, ...] = ()
    strict: bool = False
    require_cuda: int = 0
    min_executed: int = 0
    pdb_rank: int | None = None
    launcher: str = "here"
    ray_ranks: tuple[int, ...] = ()
    ray_address: str | None = None
    adopt: tuple[str, ...] = ()
    schedule: tuple[int, ...] | None = None

    @classmethod
    def read(cls, look_up: Callable[[str], tuple[str, str] | None]) -> "Settings":
        """Build from `look_up(name) -> (text, where it was set)`, or None if it is not set.

        Raises:
            UsageError: a value is invalid; the message names where it was set.
        """
        found = {name: look_up(name) for name in _OPTIONS}
        return cls(**{name: _parse(_OPTIONS[name][0], *value) for name, value in found.items() if value is not None})


def add_options(parser: "pytest.Parser") -> None:
    """Declare the options `--ddp-...` and the ini values `ddp_...`."""
    group = parser.getgroup("ddp", "distributed tests (pytest-ddp)")
    for name, (_, text) in _OPTIONS.items():
        kind = {"action": "store_true"} if name == "strict" else {"metavar": name.upper()}
        group.addoption(_flag(name), dest=f"ddp_{name}", default=None, help=text, **kind)
        parser.addini(f"ddp_{name}", help=text, default="")


def configured_value(config: "pytest.Config", name: str) -> tuple[str, str] | None:
    """Return the text of a setting and where it was set, or None if it is not set."""
    variable = f"PYTEST_DDP_{name.upper()}"
    places = (
        (config.getoption(f"ddp_{name}"), _flag(name)),
        (os.environ.get(variable), variable),
        (config.getini(f"ddp_{name}"), f"ddp_{name} in the ini file"),
    )
    return next(((str(value), where) for value, where in places if value), None)


def _flag(name: str) -> str:
    return f"--ddp-{name.replace('_', '-')}"


def _parse(parse: Callable[[str], Any], text: str, where: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None


def parse_world_sizes(text: str) -> tuple[int, ...]:
    """Parse "4" or "1,2,4"; raise ValueError for anything else."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"expected a world size such as 2, or several such as 1,2,4; got {text!r}") from None
    for size in sizes:
        if size < 1:
            raise ValueError(f"a world has at least 1 rank; got {size}")
    return sizes


def _parse_timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(f"expected a number of seconds above 0; got {text!r}")
    return seconds


def _parse_count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"expected an integer from 0; got {text!r}")
    return int(text)


def _parse_flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError(f"expected true or false; got {text!r}")
    return words[text.lower()]


def _parse_names(text: str) -> tuple[str, ...]:
    names = tuple(text.replace(",", " ").split())
    if not all(name.isidentifier() for name in names):
        raise ValueError(f"expected names of classes such as MultiProcessTestCase; got {text!r}")
    return names


def _parse_patterns(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.replace("\n", ",").split(","))))


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}; got {text!r}")
        return text

    return parse


# The parser and the help of each setting.
_OPTIONS: dict[str, tuple[Callable[[str], Any], str]] = {
    "world_size": (parse_world_sizes, "ranks of a test that sets none; 1,2,4 runs it once per size (default: 2)"),
    "backend": (
        _one_of(BACKENDS),
        "torch.distributed backend; sim simulates ranks (default: gloo on CPU, nccl on CUDA)",
    ),
    "device": (_one_of(DEVICES), "cpu, cuda, or auto for CUDA if there are enough GPUs (default: cpu)"),
    "timeout": (_parse_timeout, "seconds that each of setup, call and teardown may take (default: 60)"),
    "seed": (_parse_count, "integer from which the seeds of all tests are derived (default: 0)"),
    "leaks": (_one_of(LEAKS), "report what a test leaves behind (threads, ...): warn, error or off (default: warn)"),
    "leaks_ignore": (_parse_patterns, "leaks to keep and not to report, such as thread:pump*,environment:OMP_*"),
    "require_cuda": (_parse_count, "do not start the run on a machine with fewer GPUs than this (default: 0)"),
    "min_executed": (_parse_count, "fail the run if it executes fewer distributed tests than this (default: 0)"),
    "adopt": (_parse_names, "base classes of other harnesses whose tests run on ranks, such as MultiProcessTestCase"),
    "pdb_rank": (
        _parse_count,
        "rank that gets the terminal: at breakpoint(), and with --pdb where it failed (default: the root cause)",
    ),
    "launcher": (_one_of(LAUNCHERS), "here, or ray for ranks on the nodes of a Ray cluster (default: here)"),
    "ray_ranks": (
        parse_world_sizes,
        "ranks on each Ray node: 4,4 for 8 ranks on two nodes (default: one node, with the largest --ddp-world-size)",
    ),
    "ray_address": (str, "address of the Ray cluster (default: the one that Ray finds; else Ray is started here)"),
    "schedule": (parse_schedule, "replay these choices of the schedule on simulated ranks, such as 12:1,16:2"),
    "strict": (_parse_flag, "fail distributed tests that this machine cannot run, instead of skipping them"),
}
