"""Which exercise each component does, and the target that a rank runs."""

import torch

from conformance.components.checkpoint import on_ranks as checkpoint
from conformance.components.distributed_sampler import on_ranks as distributed_sampler
from conformance.components.evaluation import on_ranks as evaluation
from conformance.components.fsdp import on_ranks as fsdp
from conformance.components.gradient_accumulation import on_ranks as gradient_accumulation
from conformance.components.loader_generator import on_ranks as loader_generator
from conformance.components.overhead_model import on_ranks as overhead_model
from conformance.components.sync_batchnorm import on_ranks as sync_batchnorm
from conformance.protocol.case_messages import Answer, Assignment
from conformance.ranks.context import Desk, Exercise
from conformance.ranks.multi_node import on_two_machines
from conformance.ranks.tracing import gate, unawaited
from conformance.submissions import stand_ins
from conformance.submissions.attribution import boundary, stage
from conformance.submissions.loading import load
from conformance.submissions.torch_builtins import noticing

EXERCISES: dict[str, Exercise] = {
    "overhead_model": overhead_model.predict,
    "distributed_sampler": distributed_sampler.sample,
    "evaluation": evaluation.evaluate,
    "loader_generator": loader_generator.draw,
    "gradient_accumulation": gradient_accumulation.accumulate,
    "sync_batchnorm": sync_batchnorm.normalise,
    "checkpoint": checkpoint.save_and_load,
    "fsdp": fsdp.train,
}


def run(payload: bytes) -> bytes:
    """Carry out an encoded `Assignment`; return the encoded `Answer`."""
    assignment = Assignment.decode(payload)
    with boundary(assignment.submission):
        return _carry_out(assignment).encode()


def _carry_out(assignment: Assignment) -> Answer:
    with stage(assignment.submission, "import of the adapters"):
        adapters = load(assignment.submission, assignment.stubs)
    desk = Desk(assignment, adapters)
    state = torch.random.get_rng_state()
    try:
        with gate(assignment.case), on_two_machines(assignment.case), noticing() as used:
            EXERCISES[assignment.component](desk)
            return Answer(desk.answer, unawaited(assignment.case), sorted(stand_ins.used), sorted(used))
    finally:
        torch.random.set_rng_state(state)
