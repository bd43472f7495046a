"""One fault costs its own check: what does not start equal, or carries no float64, is judged for the rest."""

import pytest

FLAT = """
import torch
import torch.distributed as dist

def get_flat_ddp(module):
    for p in module.parameters():
        dist.broadcast(p.data, 0)
    return module

def flat_ddp_on_after_backward(ddp_model, optimizer):
    gradients = [p.grad for p in ddp_model.parameters() if p.grad is not None]
    if not gradients:
        return
    flat = torch.cat([g.flatten().float() for g in gradients])
    dist.all_reduce(flat)
    for g, part in zip(gradients, (flat / dist.get_world_size()).split([g.numel() for g in gradients])):
        g.copy_(part.view_as(g))
"""
NEVER_BROADCAST = FLAT.replace("dist.broadcast(p.data, 0)", "pass").replace(".float()", "")
CRASHES_IN_FLOAT64 = FLAT.replace(
    "flat = torch.cat", "assert all(g.dtype != torch.float64 for g in gradients)\n    flat = torch.cat"
)


def graded(grade_path, submission, *, core=False):
    (component,) = grade_path(submission, components=["flat_ddp"], examples=3, core=core).components
    failed = {check.id for check in component.checks if check.status == "failed"}
    return component, failed


@pytest.mark.long
def test_a_buffer_of_float32_costs_the_check_about_float64(grade_path, submit):
    component, failed = graded(grade_path, submit(FLAT))
    assert component.status == "passed"
    assert component.in_float32
    assert "trains[float64]" in failed


def test_a_component_that_crashes_in_float64_is_judged_in_float32(grade_path, submit):
    component, _ = graded(grade_path, submit(CRASHES_IN_FLOAT64), core=True)
    assert (component.points, component.in_float32) == (component.max_points, True)


def test_a_wrapper_that_never_broadcasts_loses_the_points_of_that_alone(grade_path, submit):
    component, _ = graded(grade_path, submit(NEVER_BROADCAST), core=True)
    assert {check.id for check in component.core if check.status != "passed"} == {"initial_broadcast"}
    assert component.points == component.max_points - 0.5
    assert not component.in_float32
