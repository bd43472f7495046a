"""What is said about an exception fits the scenario in which it was raised."""

import pytest

from conformance.components.checkpoint.case import CheckpointCase
from conformance.components.fsdp.case import FsdpCase
from conformance.components.fsdp.scenarios import network
from conformance.components.registry import COMPONENTS
from conformance.diagnosis.crashes import advise_on_crash
from conformance.execution.outcome import Broken
from conformance.scenarios.layers import Linear
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import AddGroup, Group, OptimizerSpec, Scenario
from conformance.submissions.location import Location
from pytest_ddp.operations.fingerprint import Fingerprint
from pytest_ddp.outcomes.outcome import Raised, Returned, TimedOut

UNEXPECTED = "got an unexpected keyword argument"
EMPTY = "ValueError", "optimizer got an empty parameter list"
UNKNOWN = "KeyError", "Parameter containing:\ntensor([1.])"
THREE = ModelSpec(1, (Linear(1), Linear(1, bias=False)))
ALONE = Group(("layers.0.bias",), {})
OTHERS = Group(("layers.0.weight", "layers.1.weight"), {})
PLAIN = Scenario(world_size=2, model=THREE, replicated=True)
IN_GROUPS = Scenario(world_size=2, model=THREE, replicated=True, optimizer=OptimizerSpec(groups=(ALONE, OTHERS)))
ADDED = Scenario(
    world_size=2,
    model=THREE,
    replicated=True,
    optimizer=OptimizerSpec(groups=(OTHERS,)),
    schedule=(AddGroup(0, ALONE),),
)
ADDED_TO_ONE = Scenario(world_size=2, model=THREE, replicated=True, schedule=(AddGroup(0, OTHERS),))
MORE_RANKS = Scenario(world_size=4, model=THREE, replicated=True)
FROZEN = Scenario(world_size=2, model=ModelSpec(1, THREE.layers, frozen=("layers.0.bias",)), replicated=True)
WRAPPED = Scenario(world_size=2, model=THREE)
MIXED = Scenario(world_size=2, model=ModelSpec(1, (Linear(1), Linear(1, dtype="float32"))))
ENTERED = (Fingerprint("all_reduce", "0", (0, 1), 1, 0),)
FRAME = '  File "{}", line 9 in hook\n'
SUBMISSION = Location("submission", "adapters", import_roots=("/submission",))
UNBOUNDED = Scenario(world_size=2, model=THREE, bucket_size_mb=None)


@pytest.mark.parametrize(
    ("scenario", "raised", "said"),
    [
        (PLAIN, EMPTY, "`params`, which may be a generator"),
        (MORE_RANKS, EMPTY, "4 ranks share a parameter group of size 3, so a rank"),
        (IN_GROUPS, EMPTY, "2 ranks share a parameter group of size 1, so a rank"),
        (ADDED, EMPTY, "2 ranks share a parameter group of size 1, so a rank"),
        (ADDED_TO_ONE, EMPTY, "2 ranks share a parameter group of size 1, so a rank"),
        (PLAIN, UNKNOWN, "extend the table there"),
        (FROZEN, UNKNOWN, "Give every parameter an owner"),
        (WRAPPED, UNKNOWN, "required gradients then"),
        (PLAIN, ("KeyError", "'lr'"), "the inner optimizer's `.defaults`"),
        (PLAIN, ("TypeError", "Plain is not an Optimizer"), "inherit from it"),
        (
            IN_GROUPS,
            ("AttributeError", "'dict' object has no attribute 'data'"),
            "Take the parameters from each group",
        ),
        (ADDED, ("ValueError", "some parameters appear in more than one parameter group"), "that the rank owns"),
        (MORE_RANKS, ("AttributeError", "'NoneType' object has no attribute 'step'"), "has no inner optimizer to step"),
        (MIXED, ("RuntimeError", "attempting to assign a gradient with dtype 'double'"), "group gradients by dtype"),
        (PLAIN, ("TypeError", f"Own.zero_grad() {UNEXPECTED} 'set_to_none'"), "def zero_grad(self, set_to_none=True)"),
        (WRAPPED, ("TypeError", f"Own.__call__() {UNEXPECTED} 'gain'"), "The wrapper's `__call__` must take"),
        (FsdpCase(), ("TypeError", f"Own.forward() {UNEXPECTED} 'gain'"), "`forward` must"),
        (CheckpointCase(), ("FileNotFoundError", "no '/tmp/x/checkpoint.pt.rank1'"), "A checkpoint is one file"),
        (UNBOUNDED, ("TypeError", "unsupported operand type(s) for *: 'NoneType' and 'int'"), "without a limit"),
        (PLAIN, ("AttributeError", "'Plain' object has no attribute 'param_groups'"), "users write to its"),
    ],
)
def test_advice_fits_the_scenario(scenario, raised, said):
    kind, message = raised
    outcomes = tuple(Raised(rank=rank, kind=kind, message=message, traceback="") for rank in range(scenario.world_size))
    assert said in advise_on_crash(Broken(outcomes), scenario, SUBMISSION)


def test_a_rank_that_owns_nothing_is_told_from_a_generator_that_was_read_twice():
    kind, message = EMPTY
    raised = Raised(rank=1, kind=kind, message=message, traceback="")
    said = advise_on_crash(Broken((Returned(rank=0), raised)), PLAIN, SUBMISSION)
    assert "leaves this rank none" in said
    assert "generator" not in said


def test_a_component_advises_on_its_own_cases():
    assert "the number of ranks" in COMPONENTS["fsdp"].advice(FsdpCase(model=network(2, 2, 3)))


@pytest.mark.parametrize(("entered", "said"), [(ENTERED, "waits for a collective"), ((), "grows with the square")])
def test_a_hang_without_collectives_is_no_wait_for_one(entered, said):
    outcomes = tuple(TimedOut(rank=rank, timeout=10.0, collectives=entered) for rank in range(2))
    assert said in advise_on_crash(Broken(outcomes), WRAPPED, SUBMISSION)


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        (("/submission/adapters.py", "/torch/autograd/graph.py"), "line 9 of adapters.py, in `hook`"),
        (("/python3.11/threading.py", "/submission/adapters.py"), "line 9 of adapters.py, in `hook`"),
        (("/torch/distributed/distributed_c10d.py", "/submission/adapters.py"), "waits for a collective"),
        (("/conformance/workload/models.py", "/submission/adapters.py"), "waits for a collective"),
    ],
)
def test_a_rank_that_stands_in_the_submission_waits_for_no_collective(frames, said):
    stack = "Thread 1:\n" + FRAME.format("/submission/thread.py") + "Current thread 2:\n"
    stack += "".join(map(FRAME.format, frames))
    outcomes = tuple(TimedOut(rank=rank, timeout=10.0, collectives=ENTERED, stack=stack) for rank in range(2))
    assert said in advise_on_crash(Broken(outcomes), WRAPPED, SUBMISSION)


def test_a_rank_is_named_that_others_wait_for():
    stack = "Current thread 2:\n" + FRAME.format("/submission/adapters.py")
    waiting = TimedOut(rank=0, timeout=10.0, collectives=ENTERED, stack=stack, waits="waits in all_reduce #1")
    standing = TimedOut(rank=1, timeout=10.0, collectives=ENTERED, stack=stack)
    assert "Rank 1 did not come back" in advise_on_crash(Broken((waiting, standing)), WRAPPED, SUBMISSION)
