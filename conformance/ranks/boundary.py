"""The boundary around a submission, on a rank: whatever happens inside it counts as the submission's doing.

A rank decodes its task, enters the boundary, and leaves it with an encoded answer. Any line in between may run code of
the submission: a look at an attribute, the deletion of an object, a function of torch that the submission replaced.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from json import dumps
from traceback import FrameSummary, StackSummary, format_list, walk_stack
from typing import Any

import torch.distributed as dist

from conformance.ranks.loading import is_own, own_frames, printable, raised_on_purpose
from conformance.submissions.location import Location
from pytest_ddp.rank.worker import Failed

_STAGE = "_conformance_stage"
_ELSEWHERE = ("a look at its objects", None)
_GONE = "the submission has destroyed the default process group, which belongs to the program that made it"
_destroyed_at: list[FrameSummary] = []


@contextmanager
def boundary(submission: Location) -> Iterator[None]:
    """Raise `Failed` for whatever is raised inside, under the name of the innermost stage that it was raised in.

    At the end, what the block has made is deleted: a `__del__` that breaks something must do so in its own run.
    """
    has_group = dist.is_initialized()
    _note_destruction()
    try:
        yield
        with stage("the deletion of what its code has made"):
            gc.collect()
            if has_group and not dist.is_initialized():
                raise RuntimeError(_GONE)  # noqa: TRY301  as if the submission had raised it
    except BaseException as error:
        raise _failed(error, submission) from error


@contextmanager
def stage(name: str, step: int | None = None) -> Iterator[None]:
    """Name what a rank does in the block, for the message about an exception that leaves it."""
    try:
        yield
    except BaseException as error:
        vars(error).setdefault(_STAGE, (name, step))
        raise


def offers(owner: Any, *names: str) -> bool:
    """Whether an object has these attributes; one whose look-up raises, be it KeyError, is none that it has."""
    try:
        return all(hasattr(owner, name) for name in names)
    except Exception:  # noqa: BLE001  a `__getattr__` may raise anything
        return False


def _failed(error: BaseException, submission: Location) -> Failed:
    name, step = vars(error).get(_STAGE, _ELSEWHERE)
    where = {"stage": name, "step": step, "refused": raised_on_purpose(error, submission)}
    text = own_frames(error, submission)
    if not dist.is_initialized():
        text += "".join(["\n", *format_list([frame for frame in _destroyed_at if is_own(frame.filename, submission)])])
    return Failed(type(error).__name__, _message(error), text.strip("\n"), dumps(where).encode())


def _message(error: BaseException) -> str:
    try:
        return printable(str(error))
    except BaseException as broken:  # noqa: BLE001  `__str__` is the submission's code, too
        return f"its message could not be made: `__str__` raised {type(broken).__name__}"


def _note_destruction() -> None:
    """Let `destroy_process_group` note where it is called."""
    real = dist.destroy_process_group
    if hasattr(real, "__wrapped__"):
        return

    @wraps(real)
    def destroy(*args: Any, **options: Any) -> None:
        frames = StackSummary.extract(walk_stack(sys._getframe(1)), lookup_lines=False)  # noqa: SLF001  of the caller
        _destroyed_at[:] = reversed(frames)
        real(*args, **options)

    dist.destroy_process_group = dist.distributed_c10d.destroy_process_group = destroy
