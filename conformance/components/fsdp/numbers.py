"""The numbers of a case: what each rank is given."""

from dataclasses import replace

from conformance.components.fsdp.case import FsdpCase
from conformance.workload.numbers import Tensors, draw_inputs


def draw(case: FsdpCase, seed: int, rank: int) -> Tensors:
    """Draw what a training with a wrapper gets, but equal buffers, and equal weights where ranks are to start alike."""
    inputs = draw_inputs(case.scenario, seed)
    return replace(inputs[rank], weights=inputs[0 if case.alike else rank].weights, buffers=inputs[0].buffers).by_name()
