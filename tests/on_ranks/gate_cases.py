"""What a gate does to single operations, checked on each of two ranks."""

import gc
import operator
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.utils.checkpoint import checkpoint

from pytest_ddp import BlocksInsideBackward, UsageError, observed
from pytest_ddp.observed import Delay, HoldUntilBackward, InOrder, Schedule, Shuffled, current
from pytest_ddp.observed.recording.record import Gate

CASES: dict[str, Callable[[], None]] = {}
HOLD = HoldUntilBackward()
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def run(body: bytes) -> bytes:
    CASES[body.decode()]()
    return b""


def gate(schedule: Schedule = HOLD):
    return observed.collectives().gate(schedule)


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape or (3,))


def all_reduces(count: int) -> list[dist.Work]:
    return [dist.all_reduce(ones(), async_op=True) for _ in range(count)]


@case
def floating_point_results_are_nan_until_they_are_waited_for():
    for dtype in FLOATS:
        with gate():
            work = dist.broadcast(tensor := torch.full((3,), dist.get_rank(), dtype=dtype), 1, async_op=True)
        assert bool(tensor.isnan().all()) is (dist.get_rank() == 0), dtype
        work.wait()
        assert tensor.tolist() == [1, 1, 1], dtype


@case
def integers_are_the_least_of_their_dtype_and_booleans_are_inverted():
    marks = {dtype: torch.iinfo(dtype).min or torch.iinfo(dtype).max for dtype in INTEGERS}
    for dtype, mark in {**marks, torch.bool: True}.items():
        with gate():
            work = dist.broadcast(tensor := torch.zeros(3, dtype=dtype), 1, async_op=True)
        assert tensor.tolist() == ([mark] * 3 if dist.get_rank() == 0 else [0, 0, 0]), dtype
        work.wait()
        assert tensor.tolist() == [0, 0, 0], dtype


@case
def tensors_that_are_only_read_are_not_poisoned():
    with gate():
        reduced = dist.reduce(to_root := ones(), 1, async_op=True)
        gathered = dist.all_gather_into_tensor(whole := torch.zeros(6), part := ones(), async_op=True)
    assert to_root.isnan().all(), "on all ranks, because gloo keeps partial sums in their tensors"
    assert whole.isnan().all()
    assert part.tolist() == [1, 1, 1]
    reduced.wait()
    gathered.wait()
    assert dist.get_rank() == 0 or to_root.tolist() == [2, 2, 2]
    assert whole.tolist() == [1] * 6


@case
def an_operation_may_read_a_part_of_what_it_fills():
    whole = torch.zeros(6)
    part = whole.chunk(2)[dist.get_rank()]
    part.fill_(dist.get_rank() + 1.0)
    with gate():
        work = dist.all_gather_into_tensor(whole, part, async_op=True)
    assert whole.isnan().all()
    work.wait()
    assert whole.tolist() == [1, 1, 1, 2, 2, 2]


@case
def a_call_that_the_backend_rejects_is_rejected_under_a_gate():
    across = torch.zeros(3, 2).t()
    with gate(), pytest.raises((RuntimeError, ValueError), match="contiguous"):
        dist.irecv(across, 1 - dist.get_rank())
    assert not across.any()


@case
def sends_and_receives_are_held():
    received = ones()
    other = 1 - dist.get_rank()
    with gate():
        sent, work = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, ones() * dist.get_rank(), other), dist.P2POp(dist.irecv, received, other)]
        )
    assert received.isnan().all()
    work.wait()
    assert received.tolist() == [other] * 3
    sent.wait()


@case
def tensor_versions_do_not_change():
    weight = nn.Parameter(ones())
    product = weight * 2
    with gate():
        work = dist.all_reduce(weight.data, async_op=True)
        work.wait()
    version = weight._version
    assert version == 0
    product.sum().backward()


@case
def sparse_results_are_held():
    sparse = torch.sparse_coo_tensor([[dist.get_rank()]], [1.0], (2,))
    with gate():
        work = dist.all_reduce(sparse, async_op=True)
    assert sparse._values().isnan().all()
    work.wait()
    assert sparse.to_dense().tolist() == [1, 1]


@case
def a_second_wait_does_not_write_the_results_again():
    with gate():
        work = dist.all_reduce(tensor := ones(), async_op=True)
        work.wait()
        tensor.zero_()
        work.wait()
        assert work.is_completed()
    assert tensor.tolist() == [0, 0, 0]


@case
def blocking_operations_outside_backward_are_not_held():
    with gate():
        dist.all_reduce(tensor := ones())
    assert tensor.tolist() == [2, 2, 2]


@case
def coalesced_operations_complete_together():
    with gate():
        tensors = [ones(), ones(2)]
        with dist._coalescing_manager(async_ops=True) as works:
            for tensor in tensors:
                dist.all_reduce(tensor)
        assert all(tensor.isnan().all() for tensor in tensors)
        works.wait()
    assert [tensor.tolist() for tensor in tensors] == [[2, 2, 2], [2, 2]]


@case
def a_timeout_passed_to_wait_is_kept():
    """It ends the wait as without a gate, and no deadlock is reported."""
    with gate():
        if dist.get_rank() == 0:
            (work,) = all_reduces(1)
            with pytest.raises(RuntimeError, match=r"(?i)time"):
                work.wait(timedelta(seconds=0.5))


@case
def nothing_is_held_outside_the_block():
    record = current.record()
    with gate(), gate(Delay(1)):
        pass
    assert type(record.gate) is Gate
    with pytest.raises(ZeroDivisionError), gate():
        operator.truediv(1, 0)
    assert type(record.gate) is Gate
    dist.all_reduce(tensor := ones(), async_op=True).get_future().wait()
    assert tensor.tolist() == [2, 2, 2]


@case
def operations_of_the_block_can_be_waited_for_after_it():
    with gate():
        work, future = all_reduces(2)
        future = future.get_future().then(lambda done: done.value()[0].div_(2))
    assert not work.is_completed() or work.wait()
    assert future.wait().tolist() == [1, 1, 1]


@case
def operations_never_waited_for_are_listed():
    with gate():
        first, _, third = all_reduces(3)
        third.get_future()
    first.wait()
    assert [entry.sequence for entry in observed.collectives().unawaited] == [2, 3]


@case
def a_gate_takes_a_schedule():
    message = r"a gate takes a schedule, such as .*HoldUntilBackward\(\); got 'hold'"
    with pytest.raises(UsageError, match=message), gate("hold"):
        pass


def completed(schedule: Schedule, wait: Callable[[list[dist.Work]], None]) -> list[int]:
    """Return the numbers, from 1, of the four operations that complete before a wait returns, in order."""
    order: list[int] = []
    with gate(schedule):
        works = all_reduces(4)
        for number, work in enumerate(works, 1):
            work.get_future().then(lambda _, number=number: order.append(number))
        wait(works)
    return order


@case
def futures_complete_in_the_order_of_the_schedule():
    def third(works):
        works[2].wait()

    assert completed(HOLD, third) == [3]
    assert completed(InOrder((4, 3)), third) == [4, 3]
    assert completed(InOrder(()), third) == [1, 2, 3]
    assert completed(Delay(3), third) == [1, 2, 4, 3]
    assert completed(Delay(2), third) == [1, 3]
    every = sorted(range(1, 5), key=Shuffled(7).place)
    assert completed(Shuffled(7), third) == every[: every.index(3) + 1]


@case
def waits_for_futures_count_as_waits():
    assert completed(InOrder((2, 1)), lambda works: works[0].get_future().wait()) == [2, 1]


@case
def a_future_of_unknown_origin_may_follow_from_any_operation():
    with gate(InOrder((2, 1))):
        order: list[int] = []
        own = torch.futures.Future()
        for number, work in enumerate(all_reduces(2), 1):
            work.get_future().then(lambda _, number=number: order.append(number))
        work.get_future().then(lambda _: own.set_result("known"))
        assert own.wait() == "known"
        assert order == [2, 1]


@case
def futures_return_the_tensors_of_the_caller():
    with gate():
        work = dist.all_reduce(tensor := ones(), async_op=True)
        future = work.get_future()
        assert work.get_future() is future
        assert not future.done() or tensor.tolist() == [2, 2, 2]
        (result,) = future.wait()
    assert result is tensor
    assert tensor.tolist() == [2, 2, 2]


@case
def no_reference_to_a_complete_operation_is_kept():
    with gate():
        future = dist.all_reduce(tensor := ones(), async_op=True).get_future()
        following = future.then(lambda done: done.value()[0] / 2)
        assert following.wait().tolist() == [1, 1, 1]
        kept = [weakref.ref(one) for one in (tensor, future, following)]
        assert not observed.collectives().unawaited
        del tensor, future, following
        while any(one() is not None for one in kept):  # the completing thread may still hold them
            gc.collect()


@case
def polling_completes_one_operation_after_the_other():
    def until_over(works):
        while not works[0].is_completed():
            time.sleep(0)

    assert completed(InOrder((3, 1)), until_over) == [3, 1]
    assert completed(Delay(1), until_over) == [2, 3, 4, 1]


@case
def polling_a_future_does_too():
    with gate(InOrder((2, 1))):
        first, second = (work.get_future() for work in all_reduces(2))
        while not first.done():
            time.sleep(0)
        assert second.done()


class Ignoring(torch.autograd.Function):
    """A function whose second argument gets no gradient."""

    @staticmethod
    def forward(_, one, __):
        return one * 2

    @staticmethod
    def backward(_, gradient):
        return gradient * 2, None


def at_the_end(*works: dist.Work) -> None:
    Variable._execution_engine.queue_callback(lambda: [work.wait() for work in works])


@case
def undefined_gradients_are_not_expected():
    """One of the gradients that backward computes is undefined."""
    parameters = [nn.Parameter(ones()) for _ in range(3)]
    works: list[dist.Work] = []
    parameters[0].register_hook(lambda _: at_the_end(*works) or works.append(all_reduces(1)[0]))
    with gate():
        (Ignoring.apply(parameters[0], parameters[1]) + parameters[2]).sum().backward()
        works[0].wait()


@case
def backward_with_inputs_expects_only_their_gradients():
    one, other = nn.Parameter(ones()), nn.Parameter(ones())
    one.register_post_accumulate_grad_hook(lambda leaf: dist.all_reduce(leaf.grad, async_op=True).wait() and None)
    with gate():
        (one * other).sum().backward(inputs=[one])
    assert one.grad.tolist() == [2, 2, 2]


@case
def operations_launched_before_backward_are_held_in_it():
    one, other = nn.Parameter(ones()), nn.Parameter(ones())
    with gate():
        (work,) = all_reduces(1)
        product = one * 2
        product.register_hook(lambda _: work.wait() and None)
        with pytest.raises(BlocksInsideBackward, match=r"with . of 2 gradients ready"):
            (product + other).sum().backward()
        work.wait()


@case
def a_backward_inside_backward_does_not_open_the_gate():
    body, head = nn.Linear(3, 3), nn.Parameter(ones())
    body.weight.register_post_accumulate_grad_hook(lambda leaf: at_the_end(dist.all_reduce(leaf.grad, async_op=True)))
    inputs = (head * 2).expand(2, 3)
    with gate(), pytest.raises(BlocksInsideBackward, match="with 0 of 1 gradients ready"):
        checkpoint(body, inputs, use_reentrant=True).sum().backward()


def leave(_: bytes) -> bytes:
    """Wait under a gate for an operation that rank 1 never enters."""
    if dist.get_rank() == 0:
        with gate(Delay(1)):
            all_reduces(2)[0].wait()
    return b""


def threads(_: bytes) -> bytes:
    """Return the number of threads of this process."""
    gc.collect()
    return str(len(list(Path("/proc/self/task").iterdir()))).encode()


kept: list[object] = []


def keep(_: bytes) -> bytes:
    """Leak handles, as a hook does that refers to its own parameter."""
    with gate():
        kept.extend([*all_reduces(2), all_reduces(1)[0].get_future()])
        kept[-3].wait()
    return b""


def wait_for_kept_handles(_: bytes) -> bytes:
    with pytest.raises(
        UsageError, match=r"all_reduce #2 float32\[3\] \(.*\) belongs to a test that is over, and so is"
    ):
        kept[1].wait()
    return b""
