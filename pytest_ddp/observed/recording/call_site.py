"""Finds the line of the user's program that called torch."""

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
# torch decorates its functions and uses context managers, so frames of these modules may come before the user's.
_WRAPPERS = tuple(str(module.__file__) for module in (contextlib, functools, warnings, typing_extensions))
_WRAPPER_FUNCTIONS = ("wrapper", "__call__")


def caller() -> tuple[str, str]:
    """Return "FILE:LINE" of the innermost frame of the user's program, and the function of torch that it called.

    The line is empty when no frame belongs to the user, as in the threads of autograd.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the documented way to the stack; `inspect` is slow
    called = ""
    while frame is not None and not _is_user_file(frame.f_code.co_filename):
        if frame.f_code.co_name not in _WRAPPER_FUNCTIONS and is_torch_file(frame.f_code.co_filename):
            called = frame.f_code.co_name
        frame = frame.f_back
    return ("" if frame is None else f"{_relative(frame.f_code.co_filename)}:{frame.f_lineno}"), called


@functools.cache
def is_torch_file(filename: str) -> bool:
    """Whether a file belongs to torch."""
    return filename.startswith(_TORCH)


@functools.cache
def _is_user_file(filename: str) -> bool:
    return not filename.startswith((_TORCH, _OURS, *_WRAPPERS))


def _relative(filename: str) -> str:
    """Return the path relative to the working directory if the file is in it."""
    try:
        directory = os.getcwd()  # noqa: PTH109  strings are faster, and every operation comes here
    except FileNotFoundError:  # a test may delete it
        return filename
    return filename.removeprefix(f"{directory}{os.sep}")
