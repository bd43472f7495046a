"""Finds the line of the user's program that communicates."""

import contextlib
import functools
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import typing_extensions

if TYPE_CHECKING:
    from types import FrameType

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_OURS = f"{Path(__file__).parents[2]}{os.sep}"
# Their frames stand between torch's functions and whoever calls them: decorators, context managers.
_BETWEEN = tuple(str(module.__file__) for module in (contextlib, functools, warnings, typing_extensions))
_DECORATORS = ("wrapper", "__call__")


def caller() -> tuple[str, str]:
    """Return "FILE:LINE" of the innermost frame that is the user's, and the function of torch that it called.

    The line is empty where no frame is the user's, as in autograd's own threads.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the documented way to the stack; `inspect` is slow
    called = ""
    while frame is not None and not _is_users(frame.f_code.co_filename):
        if frame.f_code.co_name not in _DECORATORS and is_torchs(frame.f_code.co_filename):
            called = frame.f_code.co_name
        frame = frame.f_back
    return ("" if frame is None else f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"), called


@functools.cache
def _is_users(filename: str) -> bool:
    return not filename.startswith((_TORCH, _OURS, *_BETWEEN))


@functools.cache
def is_torchs(filename: str) -> bool:
    """Whether a file belongs to torch."""
    return filename.startswith(_TORCH)


def _short(filename: str) -> str:
    """Return the path from the working directory, where that is shorter to read."""
    try:
        here = os.getcwd()  # noqa: PTH109  plain strings: this is on the path of every operation
    except FileNotFoundError:  # a test may take it away
        return filename
    return filename.removeprefix(f"{here}{os.sep}")
