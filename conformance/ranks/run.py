"""The target that ranks run: it carries out one task with the submission's functions."""

from dataclasses import replace
from importlib import import_module
from types import ModuleType

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
    """Import the submission and run the exercise with it."""
    with stage("import of the adapters"):
        adapters = load(task.submission, task.stubs)
    with noticing() as used:
        seen = exercise(task, adapters)
    return replace(seen, stubbed=sorted(stand_ins.used), borrowed=sorted(used))


def exercise(task: Task, adapters: ModuleType) -> Answer:
    """Run the exercise of a task with imported adapters; restore torch's global generator."""
    context = Context(task, adapters)
    module, _, name = task.exercise.partition(":")
    state = torch.random.get_rng_state()
    try:
        with gate(task.drawn), on_two_machines(task.drawn):
            seen: Answer = getattr(import_module(module), name)(context) or context.answered()
            return replace(seen, unawaited=unawaited(task.drawn))
    finally:
        torch.random.set_rng_state(state)
