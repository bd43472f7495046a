"""The component `both`: a wrapper and a sharded optimizer of one submission, each right by itself."""

import pytest

DDP = """
from torch.nn.parallel import DistributedDataParallel

def get_ddp(module):
    return DistributedDataParallel(module, find_unused_parameters=True)

def ddp_on_after_backward(ddp_model, optimizer):
    pass
"""
ZERO = """
from torch.distributed.optim import ZeroRedundancyOptimizer

def get_sharded_optimizer(params, optimizer_cls, **kwargs):
    return ZeroRedundancyOptimizer(params, optimizer_cls, **kwargs)
"""
NOT_WRITTEN = """
def get_ddp_individual_parameters(module):
    raise NotImplementedError

def ddp_individual_parameters_on_after_backward(ddp_model, optimizer):
    raise NotImplementedError
"""


def test_an_optimizer_that_changes_the_layout_of_parameters_fails_with_the_wrapper(checked, submit):
    in_buckets = "optimizer_cls, parameters_as_bucket_view=True, **kwargs)\n"
    adapters = DDP + ZERO.replace("optimizer_cls, **kwargs)\n", in_buckets)
    report = checked(submit(adapters), "both", "trains[transposed_parameter]", examples=4)
    assert report.status == "failed"
    assert "Looks like *in memory order*" in report.diagnosis


def test_a_wrapper_that_is_not_written_is_passed_over(grade_path, submit):
    (part,) = grade_path(submit(NOT_WRITTEN + DDP + ZERO), components=["both"], examples=2).components
    assert (part.status, part.points) == ("passed", 5)


@pytest.mark.parametrize(
    ("adapters", "other"),
    [(DDP, "ddp"), (ZERO, "sharded_optimizer"), (NOT_WRITTEN + ZERO, "sharded_optimizer")],
    ids=["no_optimizer", "no_wrapper", "no_wrapper_that_is_written"],
)
def test_without_one_of_the_two_it_is_not_submitted(grade_path, submit, adapters, other):
    part = grade_path(submit(adapters), components=["both", other], examples=1, core=True).components[0]
    assert (part.status, part.missing_functions) == ("not_submitted", ())
