"""The command-line options, ini values and environment variables of the plugin."""

import os
from functools import partial

import pytest

from pytest_ddp.settings import Settings

_OPTIONS = {
    "world_size": "number of ranks of a distributed test that does not say; 1,2,4 runs it once per size (default: 2)",
    "backend": "torch.distributed backend: gloo, nccl, mpi or ucc (default: gloo on CPU, nccl on CUDA)",
    "device": "cpu, cuda, or auto for CUDA where there are enough GPUs (default: cpu)",
    "timeout": "seconds that each phase (setup, call, teardown) of a distributed test may take (default: 60)",
    "seed": "whole number that the random numbers of every distributed test derive from (default: 0)",
    "leaks": "report what a distributed test leaves behind (threads, ...): warn, error or off (default: warn)",
    "require_cuda": "refuse to start on a machine with fewer GPUs than this (default: 0)",
    "min_executed": "fail the run if fewer distributed tests than this were executed (default: 0)",
}
_STRICT = "fail distributed tests that this machine cannot run, instead of skipping them"


def add_options(parser: pytest.Parser) -> None:
    """Declare `--ddp-...` options and `ddp_...` ini values."""
    group = parser.getgroup("ddp", "distributed tests (pytest-ddp)")
    for name, text in _OPTIONS.items():
        group.addoption(_flag(name), dest=f"ddp_{name}", default=None, metavar=name.upper(), help=text)
        parser.addini(f"ddp_{name}", help=text, default="")
    group.addoption("--ddp-strict", dest="ddp_strict", action="store_true", default=False, help=_STRICT)
    parser.addini("ddp_strict", help=_STRICT, default="")


def read_settings(config: pytest.Config) -> Settings:
    """Return the settings.

    Raises:
        UsageError: for a value that cannot be, naming where it was set.
    """
    return Settings.read(partial(value_given, config))


def value_given(config: pytest.Config, name: str) -> tuple[str, str] | None:
    """Return the value that a setting was given, and where, or None.

    The command line wins over the environment, the environment over the ini file.
    """
    variable = f"PYTEST_DDP_{name.upper()}"
    places = (
        (config.getoption(f"ddp_{name}"), _flag(name)),
        (os.environ.get(variable), variable),
        (config.getini(f"ddp_{name}"), f"ddp_{name} in the ini file"),
    )
    return next(((str(value), where) for value, where in places if value), None)


def _flag(name: str) -> str:
    return f"--ddp-{name.replace('_', '-')}"
