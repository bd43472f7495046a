"""The fixture `run_suite`, for the conftest files of tests that run pytest inside."""

from collections.abc import Callable, Sequence

import pytest
import torch  # noqa: F401  pytester forgets what an inner run imports, and torch cannot be imported twice

import pytest_ddp.controller.session  # noqa: F401  likewise: it holds the fork server that inner runs share

PREAMBLE = """
import ctypes, os, signal, sys, threading
import pytest
import torch
import torch.distributed as dist
from pytest_ddp import DDPContext, distributed
"""


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
