"""Which collectives a wrapper launches, and when: read from the order of events, never from a clock."""

import pytest
import torch.distributed as dist
from reference_collectives import recorded
from reference_models import Chain, mlp
from reference_wrappers import AFTER_BACKWARD, FLAT, NAIVE, OVERLAPPED, WRAPPERS, Wrapper, bucketed
from side_by_side import SideBySide
from torch import nn

from pytest_ddp import DDPContext, distributed
from pytest_ddp.observed import HoldUntilBackward, Overlap
from pytest_ddp.rank.collective_hooks import watch_collectives

LAST = "the last gradient"
MLP_BYTES = 8 * (24 + 6 + 36 + 6 + 18 + 3)

overlapped = pytest.mark.parametrize("wrapper", OVERLAPPED.values(), ids=OVERLAPPED)
after_backward = pytest.mark.parametrize("wrapper", AFTER_BACKWARD.values(), ids=AFTER_BACKWARD)


def mlp_that_tells_its_last_gradient(events: list[str]) -> nn.Module:
    """Its hooks run before those of a wrapper, so a collective launched by the last gradient comes after that event."""
    model = mlp()
    for parameter in model[0].parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: events.append(LAST))
    return model


def events_of_backward(wrapper: Wrapper) -> list[str]:
    """The events of the second backward: collectives by name, and the two gradients of the first layer."""
    events: list[str] = []
    training = SideBySide(lambda: mlp_that_tells_its_last_gradient(events), wrapper=wrapper)
    training.train([0])
    loss = training.local_loss(1)
    events.clear()
    with watch_collectives(lambda collective: events.append(collective.op)):
        loss.backward()
    training.finish()
    return events


@overlapped
@distributed(world_size=[1, 2])
def test_collectives_start_before_the_last_gradient_is_there(wrapper: Wrapper) -> None:
    events = events_of_backward(wrapper)
    assert "all_reduce" in events[: events.index(LAST)], events


@overlapped
@distributed(world_size=2)
def test_every_gradient_is_launched_when_backward_is_over(wrapper: Wrapper) -> None:
    training = SideBySide(mlp, wrapper=wrapper)
    loss = training.local_loss(0)
    with recorded() as seen:
        loss.backward()
    assert sum(collective.bytes for collective in seen) == MLP_BYTES
    training.finish()


@overlapped
@distributed(world_size=2)
def test_a_layer_unfrozen_after_wrapping_does_not_hold_up_the_others(wrapper: Wrapper) -> None:
    def last_layer_frozen() -> nn.Module:
        model = mlp()
        model[4].requires_grad_(requires_grad=False)
        return model

    training = SideBySide(last_layer_frozen, wrapper=wrapper)
    training.module.requires_grad_(requires_grad=True)
    loss = training.local_loss(0)
    with recorded() as seen:
        loss.backward()
    assert sum(collective.bytes for collective in seen) == MLP_BYTES
    training.finish()


@after_backward
@distributed(world_size=2)
def test_the_simple_wrappers_communicate_after_backward_only(wrapper: Wrapper) -> None:
    assert events_of_backward(wrapper) == [LAST, LAST]


@overlapped
@distributed(world_size=2, timeout=20)
def test_backward_waits_for_no_other_rank(wrapper: Wrapper, ddp: DDPContext) -> None:
    """Rank 1 begins its backward when rank 0's is over. A rank 0 that waited for a collective would hang."""
    turns = dist.new_group()
    training = SideBySide(mlp, wrapper=wrapper)
    for step in range(2):
        training.zero_grad()
        loss = training.local_loss(step)
        if ddp.rank == 1:
            dist.barrier(turns)
        loss.backward()
        if ddp.rank == 0:
            dist.barrier(turns)
        training.finish()
        training.twin_backward(step)
        training.update()
    dist.destroy_process_group(turns)


def elements_sent(wrapper: Wrapper) -> list[int]:
    """The elements of each collective that sends gradients, in one step on the MLP."""
    training = SideBySide(mlp, wrapper=wrapper)
    with recorded() as seen:
        training.train([0])
    return [collective.bytes // 8 for collective in seen]


@distributed(world_size=2)
def test_the_naive_wrapper_sends_each_gradient_by_itself() -> None:
    assert elements_sent(NAIVE) == [24, 6, 36, 6, 18, 3]


@distributed(world_size=2)
def test_the_flat_wrapper_sends_all_gradients_at_once() -> None:
    assert elements_sent(FLAT) == [93]


@distributed(world_size=2)
@pytest.mark.parametrize("name", ["ddp_individual_parameters", "ddp"])
def test_the_overlapped_wrapper_sends_each_gradient_by_itself_last_layer_first(name: str) -> None:
    assert elements_sent(OVERLAPPED[name]) == [3, 18, 6, 36, 6, 24]


@distributed(world_size=2)
@pytest.mark.parametrize(
    ("capacity", "elements"),
    [
        (1, [3, 18, 6, 36, 6, 24]),
        (27, [27, 36, 6, 24]),
        (45, [27, 42, 24]),
        (63, [63, 30]),
        (93, [93]),
        (None, [93]),
    ],
)
def test_buckets_are_as_full_as_their_size_allows(capacity: int | None, elements: list[int]) -> None:
    size = None if capacity is None else 8 * capacity / 1024**2
    assert elements_sent(bucketed(size)) == elements


@distributed(world_size=2)
@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
def test_the_collectives_do_not_depend_on_the_parameters_used(wrapper: Wrapper) -> None:
    training = SideBySide(Chain, wrapper=wrapper)
    sent = []
    for use in ((0, 1, 2), (1,), ()):
        with recorded() as seen:
            training.train([0], use=lambda _rank, use=use: use)
        sent.append([collective.shapes for collective in seen])
    assert sent[0] == sent[1] == sent[2]


def verdicts_while_held(wrapper: Wrapper, ddp: DDPContext) -> set[Overlap]:
    """Train under a gate that lets no collective complete inside backward, and check gradients at each step."""
    with ddp.collectives.gate(HoldUntilBackward()):
        SideBySide(mlp, wrapper=wrapper).train([0, 1, 2])
    assert not ddp.collectives.unawaited
    backwards = [
        one for one in ddp.collectives.overlap if one.verdict is not Overlap.NONE
    ]  # the twin's backward has no collectives
    assert len(backwards) == 3
    return {one.verdict for one in backwards}


@overlapped
@distributed(world_size=2, observe=True)
def test_no_collective_needs_to_complete_inside_backward(wrapper: Wrapper, ddp: DDPContext) -> None:
    assert verdicts_while_held(wrapper, ddp) == {Overlap.OVERLAPPED}


@after_backward
@distributed(world_size=2, observe=True)
def test_the_simple_wrappers_overlap_nothing(wrapper: Wrapper, ddp: DDPContext) -> None:
    assert verdicts_while_held(wrapper, ddp) == {Overlap.AFTER_BACKWARD}
