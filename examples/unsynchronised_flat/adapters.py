# ruff: noqa: ARG001  # the assignment gives the signatures
from flat_ddp import FlatDDP


def get_flat_ddp(module):
    return FlatDDP(module)


def flat_ddp_on_after_backward(ddp_model, optimizer):
    ddp_model.finish_gradient_synchronization()
