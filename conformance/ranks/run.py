"""The target that ranks run: it carries out one task with the submission's functions."""

from dataclasses import replace
from importlib import import_module

import torch

from conformance.protocol.messages import Answer, Task
from conformance.ranks import stand_ins
from conformance.ranks.boundary import boundary, stage
from conformance.ranks.context import Context
from conformance.ranks.environment import on_two_machines
from conformance.ranks.integrity import require_unchanged
from conformance.ranks.loading import load
from conformance.ranks.torch_builtins import noticing
from conformance.ranks.tracing import gate, unawaited


def run(payload: bytes) -> bytes:
    """Carry out an encoded `Task`; return the encoded `Answer`."""
    task = Task.decode(payload)
    with boundary(task.submission):
        answer = carry_out(task).encode()
        require_unchanged()
        return answer


def carry_out(task: Task) -> Answer:
    """Import the submission and run the exercise with it; restore torch's global generator."""
    with stage("import of the adapters"):
        adapters = load(task.submission, task.stubs)
    context = Context(task, adapters)
    module, _, exercise = task.exercise.partition(":")
    state = torch.random.get_rng_state()
    try:
        with gate(task.drawn), on_two_machines(task.drawn), noticing() as used:
            seen = getattr(import_module(module), exercise)(context) or context.answered()
            unwaited = unawaited(task.drawn)
    finally:
        torch.random.set_rng_state(state)
    return replace(seen, unawaited=unwaited, stubbed=sorted(stand_ins.used), borrowed=sorted(used))
