"""The boundary around a submission, on a rank: whatever happens inside it counts as the submission's doing.

A rank decodes its task, enters the boundary, and leaves it with an encoded answer. Any line in between may run code of
the submission: a look at an attribute, the deletion of an object, a function of torch that the submission replaced.
"""

import gc
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, wraps
from json import dumps
from pathlib import Path
from typing import Any

import torch.distributed as dist

from conformance.ranks.lacks import lacking
from conformance.ranks.loading import is_of_library, is_own
from conformance.submissions.location import Location
from pytest_ddp.rank.worker import Failed

_STAGE = "_conformance_stage"
_ELSEWHERE = ("a look at the submission's objects", None)
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_GONE = "the submission has destroyed the default process group, which belongs to the program that made it"
_destroyed_at: list[traceback.FrameSummary] = []
_attributes_of = BaseException.__dict__["__dict__"].__get__  # a class of the submission may define another `__dict__`
_traceback_of = BaseException.__dict__["__traceback__"].__get__


@contextmanager
def boundary(submission: Location) -> Iterator[None]:
    """Raise `Failed` for any exception that leaves the block, with the name of the innermost stage that it left.

    At the end, garbage is collected: a `__del__` that breaks the process breaks it in its own run.
    """
    has_group = dist.is_initialized()
    _note_destruction()
    try:
        yield
        with stage("the deletion of the objects that it made"):
            gc.collect()
            if has_group and not dist.is_initialized():
                raise RuntimeError(_GONE)  # noqa: TRY301  as if the submission had raised it
    except BaseException as error:
        raise _failed(error, submission) from error


@contextmanager
def stage(name: str, step: int | None = None) -> Iterator[None]:
    """Name what the rank does in the block, for the message about an exception."""
    try:
        yield
    except BaseException as error:
        _attributes_of(error).setdefault(_STAGE, (name, step))
        raise


def offers(owner: Any, *names: str) -> bool:
    """Whether an object has these attributes; it has none whose look-up raises, whatever the exception."""
    try:
        return all(hasattr(owner, name) for name in names)
    except Exception:  # noqa: BLE001  a `__getattr__` may raise anything
        return False


def _failed(error: BaseException, submission: Location) -> Failed:
    try:
        return _described(error, submission)
    except BaseException as broken:  # noqa: BLE001  the submission may have made the exception, and what describes it
        where = {"stage": _ELSEWHERE[0], "step": None, "refused": False, "lacking": ""}
        said = f"it cannot be described: that raised {_kind(broken)}: {_message(broken)}"
        return Failed(_kind(error), said, "", dumps(where).encode())


def _described(error: BaseException, submission: Location) -> Failed:
    name, step = _attributes_of(error).get(_STAGE, _ELSEWHERE)
    refused = _raised_on_purpose(error, submission)
    where = {"stage": name, "step": step, "refused": refused, "lacking": _printable(lacking(error, submission))}
    text = [_own_frames(error, submission)]
    if not dist.is_initialized():
        text += traceback.format_list([frame for frame in _destroyed_at if is_own(frame.filename, submission)])
    said = _printable("\n".join(text).strip("\n"))
    return Failed(_kind(error), _message(error), said, dumps(where).encode())


def _kind(error: BaseException) -> str:
    try:
        return _printable(str(type(error).__name__))
    except BaseException:  # noqa: BLE001  `__name__` may be a property of the submission's
        return "an exception without a name"


def _message(error: BaseException) -> str:
    try:
        return _printable(str(error))
    except BaseException as broken:  # noqa: BLE001  `__str__` is the submission's code, too
        return f"its message could not be made: `__str__` raised {_kind(broken)}"


def _own_frames(error: BaseException, location: Location) -> str:
    """Return the frames of a traceback in the submission's files, or else in its libraries, or else the last frame.

    A `raise` statement of ours is left out: its message says enough.
    """
    frames = traceback.extract_tb(_traceback_of(error))
    own = [frame for frame in frames if is_own(frame.filename, location)]
    last = [frame for frame in frames[-1:] if not (frame.filename.startswith(_OURS) and _is_raise(frame.line or ""))]
    of_library = [frame for frame in frames if is_of_library(frame.filename, location)]
    return "".join(traceback.format_list(own or of_library or last)).rstrip()


def in_words(error: BaseException, location: Location) -> tuple[str, str]:
    """Return what an error says, and the submission's own frames; a syntax error names its line itself."""
    said = traceback.format_exception_only(error)
    if isinstance(error, SyntaxError):
        return _printable(said[-1].rstrip()), _printable("".join(said[:-1]).rstrip())
    return _printable("".join(said).rstrip()), _printable(_own_frames(error, location))


def _printable(text: str) -> str:
    """Return a text with escapes for surrogates, which cannot be written to a file."""
    return text.encode(errors="backslashreplace").decode()


def _raised_on_purpose(error: BaseException, location: Location) -> bool:
    """Whether a `raise` statement of the submission raised an error: it refuses, and does not fail by accident.

    A library may refuse for a submission that builds on it, also by `assert` with a message.
    """
    last = traceback.extract_tb(_traceback_of(error))[-1]
    of_library = is_of_library(last.filename, location)
    if of_library and isinstance(error, AssertionError) and error.args:
        return True
    return (
        isinstance(error, Exception) and (of_library or is_own(last.filename, location)) and _is_raise(last.line or "")
    )


def _is_raise(line: str) -> bool:
    return line.lstrip().startswith("raise ")


@cache
def _note_destruction() -> None:
    """Let `destroy_process_group` record where it is called."""
    real = dist.destroy_process_group

    @wraps(real)
    def destroy(*args: Any, **options: Any) -> None:
        frames = traceback.StackSummary.extract(traceback.walk_stack(sys._getframe(1)), lookup_lines=False)  # noqa: SLF001  of the caller
        _destroyed_at[:] = reversed(frames)
        real(*args, **options)

    dist.destroy_process_group = dist.distributed_c10d.destroy_process_group = destroy
