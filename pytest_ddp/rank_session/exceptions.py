"""Tells the controller that a phase has raised, before pytest shows the exception with the code around it."""

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from pytest_ddp.errors import BlocksInsideBackward, CollectiveMismatch
from pytest_ddp.protocol.messages import Raising
from pytest_ddp.rank.worker import Rank

if TYPE_CHECKING:
    from types import TracebackType


class ExceptionNotice:
    """Says so at once: another rank may have failed before, and those that still run are not waited for long.

    What a subtest raises does not come this far, and the test goes on.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        """Run a phase, and tell of what it raises."""
        __tracebackhide__ = True
        try:
            return (yield)
        except BaseException:
            self._rank.send(Raising())
            raise

    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


# Ends the traceback of an operation that was refused at the line that called it: what lies below is not to blame.

_BELOW = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


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
