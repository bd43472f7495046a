"""What claims leave out of scenarios and checks, and what they change."""

from dataclasses import replace
from typing import get_args

import pytest

from conformance import Claims
from conformance.components.registry import COMPONENTS
from conformance.execution.executor import Executor
from conformance.execution.fork_servers import ranks_from
from conformance.grading.grade import Grading, grade_check
from conformance.grading.report import CheckReport
from conformance.judging.draws import Draws
from conformance.judging.run_check import Result, run_check
from conformance.scenarios.claims import EVERYTHING
from conformance.scenarios.model_spec import Branch, ModelSpec
from conformance.scenarios.scenario import Freeze, OptimizerKind, OptimizerSpec, Scenario
from conformance.strategies import Bounds, wrapper
from conformance.strategies.building_blocks import one_of
from conformance.submissions.location import locate

PLAIN = Scenario()


def test_everything_is_claimed_unless_something_else_is_said():
    for branch in get_args(Branch):
        drawn = replace(PLAIN, model=ModelSpec(branch=branch))
        assert EVERYTHING.eased(drawn, exact=False, optimizer=True) == drawn
        assert EVERYTHING.unclaimed(drawn, optimizer=True) == ""
    for component in COMPONENTS.values():
        assert not any(EVERYTHING.leaves_out(component.name, check.id) for check in component.checks)


def test_an_engine_may_keep_the_state_on_every_rank():
    claims = Claims(shards_state=False)
    assert claims.leaves_out("engine", "state_is_sharded") == "claimed is shards_state=False"
    assert not claims.leaves_out("sharded_optimizer", "state_is_sharded")


@pytest.mark.parametrize(
    ("claims", "mistake"),
    [
        (Claims(dtypes="float32"), "Claims(dtypes='float32'): give a tuple of some of float64, float32, bfloat16, "),
        (Claims(dtypes=()), "Claims(dtypes=()): give a tuple of some of"),
        (Claims(optimizers=("LBFGS",)), "Claims(optimizers=('LBFGS',)): give a tuple of some of SGD, AdamW, Adam, "),
        (Claims(broadcasts="later"), "Claims(broadcasts='later'): choose from at_wrap, at_first_forward, never"),
        (Claims(unused="no"), "Claims(unused='no'): choose from on_any_rank, on_all_ranks, in_all_steps, never"),
        (Claims(lossy=1.5), "Claims(lossy=1.5): give a share from 0 to 1, as 1e-2"),
        (Claims(lossy=1e-2), ""),
    ],
)
def test_wrong_claims_are_named(claims, mistake):
    assert claims.mistake.startswith(mistake)
    assert bool(claims.mistake) is bool(mistake)


def test_without_float64_scenarios_are_in_float32_and_those_that_must_not_be_are_left_out():
    claims = Claims(dtypes=("float32",))
    eased = claims.eased(PLAIN, exact=False, optimizer=False)
    assert (eased.model.dtype, claims.unclaimed(eased, optimizer=False)) == ("float32", "")
    exact = claims.eased(PLAIN, exact=True, optimizer=False)
    assert claims.unclaimed(exact, optimizer=False) == "claimed are dtypes=('float32',), without float64"
    later = replace(eased, converted="float64")
    assert claims.unclaimed(later, optimizer=False) == "claimed are dtypes=('float32',), without float64"


@pytest.mark.parametrize(
    ("kind", "optimizers", "optimizer", "left"),
    [
        ("AdamW", ("Adam", "SGD"), True, ("Adam", "")),
        ("Adam", ("AdamW",), True, ("AdamW", "")),
        ("SGD", ("Adam",), True, ("SGD", "claimed are optimizers=('Adam',), without SGD")),
        ("SGD", ("Adam",), False, ("SGD", "")),
    ],
)
def test_optimizers_are_those_of_the_library(kind: OptimizerKind, optimizers, optimizer, left):
    claims = Claims(optimizers=optimizers)
    eased = claims.eased(replace(PLAIN, optimizer=OptimizerSpec(kind)), exact=False, optimizer=optimizer)
    assert (eased.optimizer.kind, claims.unclaimed(eased, optimizer=optimizer)) == left


@pytest.mark.parametrize(
    ("unused", "allowed"),
    [
        ("on_any_rank", {*get_args(Branch)}),
        (
            "on_all_ranks",
            {
                *("none", "order_by_rank", "unused"),
                *("used_in_even_steps", "used_in_odd_steps", "used_in_first_micro_batch"),
            },
        ),
        ("in_all_steps", {"none", "order_by_rank", "unused"}),
        ("never", {"none", "order_by_rank"}),
    ],
)
def test_unused_parameters_are_as_claimed(unused, allowed):
    claims = Claims(unused=unused)
    scenarios = {branch: replace(PLAIN, model=ModelSpec(branch=branch)) for branch in get_args(Branch)}
    assert {branch for branch, one in scenarios.items() if not claims.unclaimed(one, optimizer=False)} == allowed


def test_a_parameter_that_is_frozen_later_has_no_gradient_on_all_ranks():
    frozen = replace(PLAIN, schedule=(Freeze(1, ("layers.0.weight",)),))
    assert Claims(unused="on_all_ranks").unclaimed(frozen, optimizer=False) == ""
    words = "claimed is unused='in_all_steps', and a parameter has no gradient in some steps"
    assert Claims(unused="in_all_steps").unclaimed(frozen, optimizer=False) == words


@pytest.mark.parametrize(
    ("broadcasts", "left_out"),
    [
        ("at_wrap", set()),
        ("at_first_forward", {("ddp", "initial_broadcast"), ("ddp", "trains[buffers]")}),
        ("never", {("ddp", "initial_broadcast"), ("ddp", "trains[buffers]"), ("fsdp", "initial_broadcast")}),
    ],
)
def test_checks_of_the_broadcast_are_as_claimed(broadcasts, left_out):
    claims = Claims(broadcasts=broadcasts)
    ids = [(name, check.id) for name in ("ddp", "fsdp") for check in COMPONENTS[name].checks]
    words = {one: claims.leaves_out(*one) for one in ids}
    assert {one for one, said in words.items() if said} == left_out
    assert {said for said in words.values() if said} <= {f"claimed is broadcasts={broadcasts!r}"}
    assert claims.eased(PLAIN, exact=False, optimizer=False).equal_start is (broadcasts == "never")


def test_overlap_is_as_claimed():
    ids = [check.id for check in COMPONENTS["ddp"].checks]
    assert [one for one in ids if Claims(overlaps=False).leaves_out("ddp", one)] == [
        one for one in ids if one.startswith("overlaps_backward")
    ]
    assert Claims(overlaps=False).leaves_out("ddp", "overlaps_backward") == "claimed is overlaps=False"


def draws(scenarios, claims: Claims, **options) -> Draws:
    return Draws(scenarios, (), Bounds(2), 1, "1", 6, claims=claims, **options)


def test_alternatives_that_are_not_claimed_are_left_out_and_told():
    drawn = draws(one_of(wrapper.plain, wrapper.with_branch("unused")), Claims(unused="never"))
    assert {one.model.branch for one in drawn.all()} == {"none"}
    assert drawn.left_out == ("claimed is unused='never', and a parameter has no gradient in any step",)


def test_where_all_is_left_out_nothing_is_drawn():
    drawn = draws(wrapper.plain, Claims(dtypes=("float32",)), exact=True)
    assert drawn.all() == ()
    assert drawn.left_out == ("claimed are dtypes=('float32',), without float64",)


def test_a_grade_claims_everything():
    assert Grading(1, 2, ("ddp",), 1).claims == EVERYTHING


def test_checks_that_require_an_unclaimed_one_run(monkeypatch):
    (check,) = (check for check in COMPONENTS["ddp"].checks if check.id == "trains[used_in_some_steps]")
    monkeypatch.setattr("conformance.grading.grade._run", lambda *_: Result(check, "passed"))
    grading = Grading(1, 2, ("ddp",), 1, claims=Claims(unused="on_all_ranks"))
    passed = {one: CheckReport(one, "extended", "passed", "") for one in check.requires}
    for unclaimed, status in ((True, "passed"), (False, "not_run")):
        skipped = CheckReport(check.requires[1], "extended", "not_run", "", unclaimed=unclaimed)
        report = grade_check("ddp", check, None, grading, passed | {skipped.id: skipped})
        assert report.status == status


HALVED = """
import torch
import torch.distributed as dist

def get_ddp(module):
    return module

def ddp_on_after_backward(wrapped, optimizer):
    for p in wrapped.parameters():
        sent = p.grad.half()
        dist.all_reduce(sent)
        p.grad = sent.to(p.dtype) / FACTOR
"""


@pytest.mark.parametrize(
    ("lossy", "factor", "status"),
    [(2e-3, "dist.get_world_size()", "passed"), (0.0, "dist.get_world_size()", "failed"), (2e-3, "1", "failed")],
    ids=["claimed", "not_claimed", "wrong_as_well"],
)
def test_lossy_communication_is_right_within_what_is_claimed(launcher, submit, lossy, factor, status):
    (check,) = (check for check in COMPONENTS["ddp"].checks if check.id == "training_equals_one_process")
    claims = Claims(lossy=lossy, broadcasts="never")
    with ranks_from(launcher) as ranks:
        executor = Executor(ranks, locate(str(submit(HALVED.replace("FACTOR", factor)))), "1")
        result = run_check(COMPONENTS["ddp"], check, executor, world_size=2, seed=1, examples=4, claims=claims)
    assert (result.status, result.examples > 0) == (status, True), result.message
