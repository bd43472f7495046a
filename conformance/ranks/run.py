"""The target that ranks run: one task, carried out with the submission's functions."""

from dataclasses import replace
from importlib import import_module

import torch

from conformance.protocol.messages import Answer, Task
from conformance.ranks.context import Desk
from conformance.ranks.multi_node import on_two_machines
from conformance.ranks.tracing import gate, unawaited
from conformance.submissions import stand_ins
from conformance.submissions.attribution import stage
from conformance.submissions.loading import load
from conformance.submissions.torch_builtins import noticing


def run(payload: bytes) -> bytes:
    """Carry out an encoded `Task`; return the encoded `Answer`."""
    return carry_out(Task.decode(payload)).encode()


def carry_out(task: Task) -> Answer:
    """Import the submission, and do the exercise with it; the global generator of torch stays where it was."""
    with stage(task.submission, "import of the adapters"):
        adapters = load(task.submission, task.stubs)
    desk = Desk(task, adapters)
    module, _, exercise = task.exercise.partition(":")
    state = torch.random.get_rng_state()
    try:
        with gate(task.drawn), on_two_machines(task.drawn), noticing() as used:
            seen = getattr(import_module(module), exercise)(desk) or desk.answered()
            unwaited = unawaited(task.drawn)
    finally:
        torch.random.set_rng_state(state)
    return replace(seen, unawaited=unwaited, stubbed=sorted(stand_ins.used), borrowed=sorted(used))
