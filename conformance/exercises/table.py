"""Which exercise each component does, and the target that a rank runs."""

import torch

from conformance import stubs
from conformance.answer import Answer, Assignment
from conformance.borrowing import noticing
from conformance.exercises import accumulation, checkpoint, evaluation, fsdp, loader, overhead, sampler, sync_batchnorm
from conformance.exercises.desk import Desk, Exercise
from conformance.stage import stage
from conformance.subject import load
from conformance.two_machines import on_two_machines
from conformance.watching import gate, unawaited

EXERCISES: dict[str, Exercise] = {
    "overhead_model": overhead.predict,
    "distributed_sampler": sampler.sample,
    "evaluation": evaluation.evaluate,
    "loader_generator": loader.draw,
    "gradient_accumulation": accumulation.accumulate,
    "sync_batchnorm": sync_batchnorm.normalise,
    "checkpoint": checkpoint.save_and_load,
    "fsdp": fsdp.train,
}


def run(payload: bytes) -> bytes:
    """Carry out an encoded `Assignment`; return the encoded `Answer`."""
    assignment = Assignment.decode(payload)
    with stage(assignment.submission, "import of the adapters"):
        adapters = load(assignment.submission, assignment.stubs)
    desk = Desk(assignment, adapters)
    state = torch.random.get_rng_state()
    try:
        with gate(assignment.case), on_two_machines(assignment.case), noticing() as used:
            EXERCISES[assignment.component](desk)
            answer = Answer(desk.answer, unawaited(assignment.case), sorted(stubs.used), sorted(used))
    finally:
        torch.random.set_rng_state(state)
    return answer.encode()
