"""Finds the line of the user's program that communicates."""

import contextlib
import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from types import FrameType

_NOT_THE_USERS = (
    f"{Path(torch.__file__).parent}{os.sep}",
    f"{Path(__file__).parent.parent}{os.sep}",
    contextlib.__file__,  # between a context manager of torch and the `with` that uses it
)
_BETWEEN = ("wrapper", "__call__", "_issue")  # decorators and dispatchers


def caller() -> tuple[str, str]:
    """Return "FILE:LINE" of the innermost frame that is the user's, and the function of torch that it called.

    The line is empty where no frame is the user's, as in autograd's own threads.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the documented way to the stack; `inspect` is slow
    called = ""
    while frame is not None and _is_torchs(frame.f_code.co_filename):
        if frame.f_code.co_name not in _BETWEEN:
            called = frame.f_code.co_name
        frame = frame.f_back
    return ("" if frame is None else f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"), called


@functools.cache
def _is_torchs(filename: str) -> bool:
    return filename.startswith(_NOT_THE_USERS)


def _short(filename: str) -> str:
    """Return the path from the working directory, where that is shorter to read."""
    here = f"{os.getcwd()}{os.sep}"  # noqa: PTH109  plain strings: this is on the path of every operation
    return filename.removeprefix(here)
