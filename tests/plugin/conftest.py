"""Runs a suite of distributed tests in a project of its own."""

import functools
import gc
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch  # noqa: F401  pytester forgets what an inner run imports, and torch cannot be imported twice
from hypothesis import settings

import pytest_ddp.controller.session  # noqa: F401  likewise: it holds the fork server that inner runs share

PREAMBLE = """
import ctypes, os, signal, sys, threading
import pytest
import torch
import torch.distributed as dist
from pytest_ddp import DDPContext, distributed
"""
HYPOTHESIS = """
from dataclasses import dataclass
from hypothesis import HealthCheck, Phase, assume, event, example, given, note, reject, seed, settings, target
from hypothesis import strategies as st

fast = settings(database=None, deadline=None, derandomize=True)  # what is drawn is not left to luck

"""


@pytest.fixture(scope="session", autouse=True)
def light_garbage_collections() -> Iterator[None]:
    """Every inner run ends with five collections of garbage: let them skip what is here to stay."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def run_suite(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Write a test module and run pytest on it, in this process: the fork server is shared with the outer run."""

    def run(source: str, *args: str, conftest: str = "", plugins: Sequence[object] = ()) -> pytest.RunResult:
        pytester.makepyfile(test_suite=PREAMBLE + "\n".join(_dedented(source)))
        if conftest:
            pytester.makeconftest(conftest)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *args, plugins=plugins)

    return run


def _dedented(source: str) -> list[str]:
    lines = source.splitlines()
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[indent:] for line in lines]


@pytest.fixture
def run_given(run_suite, monkeypatch):
    """Run a suite of Hypothesis tests as on a desk: on a CI machine it draws from one seed and has no database."""
    before = settings.get_current_profile_name()
    settings.load_profile("default")
    monkeypatch.setattr("hypothesis.core.global_force_seed", None)  # an inner run's --hypothesis-seed would outlive it

    @functools.wraps(run_suite)
    def run(source: str, *args: str, **keywords):
        indent = " " * (len(source) - len(source.lstrip()) - 1)
        return run_suite("".join(f"{indent}{line}\n" for line in HYPOTHESIS.splitlines()) + source, *args, **keywords)

    yield run
    settings.load_profile(before)
