# ruff: noqa: ARG001  # the assignment gives the signatures
from individual_ddp import IndividualDDP


def get_ddp_individual_parameters(module):
    return IndividualDDP(module)


def ddp_individual_parameters_on_after_backward(ddp_model, optimizer):
    ddp_model.finish_gradient_synchronization()
