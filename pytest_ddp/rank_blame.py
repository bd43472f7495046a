"""Ends the traceback of an operation that was refused at the line that called it: what lies below is not to blame."""

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from pytest_ddp.errors import BlocksInsideBackward, CollectiveMismatch

if TYPE_CHECKING:
    from types import TracebackType

_BELOW = tuple(str(Path(file).parent) for file in (torch.__file__, __file__))


class Blame:
    """Hooks around the phases of a test on a rank."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        """Look at what a fixture raised."""
        __tracebackhide__ = True
        return (yield from _blamed())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Look at what the test raised."""
        __tracebackhide__ = True
        return (yield from _blamed())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        """Look at what a fixture raised."""
        __tracebackhide__ = True
        return (yield from _blamed())


def _blamed() -> Generator[None, object, object]:
    __tracebackhide__ = True
    try:
        return (yield)
    except (CollectiveMismatch, BlocksInsideBackward) as error:
        end_at_caller(error)
        raise


def end_at_caller(error: BaseException) -> None:
    """Drop the frames of torch and of ours at the end of an exception's traceback."""
    last: TracebackType | None = None
    frame = error.__traceback__
    while frame is not None:
        if not frame.tb_frame.f_code.co_filename.startswith(_BELOW):
            last = frame
        frame = frame.tb_next
    if last is not None:
        last.tb_next = None
