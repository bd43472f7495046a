"""Runs the operations and trainings of other targets under a gate. The schedule is passed as its repr."""

import pickle
import warnings

import observed_operations
import observed_training
import torch
import torch.distributed as dist

from pytest_ddp import BlocksInsideBackward, observed
from pytest_ddp.observed import HoldUntilBackward, Schedule

SCHEDULES = {kind.__name__: kind for kind in (HoldUntilBackward, *Schedule.__subclasses__())}


def schedule(text: str) -> Schedule:
    return eval(text, dict(SCHEDULES))  # noqa: S307  our own text


def operations(body: bytes) -> bytes:
    """Return the result of every operation under a gate, and the operations never waited for."""
    return pickle.dumps({name: _operation(name, schedule(body.decode())) for name in observed_operations.OPERATIONS})


def _operation(name: str, gated_by: Schedule) -> tuple[object, list[observed.Entry]]:
    collectives = observed.collectives()
    collectives.clear()
    with warnings.catch_warnings(), collectives.gate(gated_by):
        warnings.simplefilter("ignore")  # torch's own deprecations
        try:
            found = observed_operations.plain(observed_operations.OPERATIONS[name](dist.get_rank()))
        except (RuntimeError, BlocksInsideBackward) as error:  # gloo does not have it, or the gate raised
            found = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return found, collectives.unawaited


def training(body: bytes) -> bytes:
    """Return the result of a training, the verdicts on its backward passes, and the operations never waited for."""
    name, text = pickle.loads(body)  # noqa: S301  from our own test
    torch.manual_seed(1)
    collectives = observed.collectives()
    with warnings.catch_warnings(), collectives.gate(schedule(text)):
        warnings.simplefilter("ignore")  # torch's own deprecations
        found = observed_operations.plain(observed_training.PROGRAMS[name]())
    return pickle.dumps((found, collectives.overlap, collectives.unawaited))
