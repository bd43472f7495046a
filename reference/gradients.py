"""What all data-parallel algorithms do with gradients: notice them, launch them in one order, average them.

- **Hooks.** Backward computes the gradients of the last layers first. `call_when_ready` calls a function when one
  gradient is complete, so that it can be sent while backward computes the others.
- **One order.** Collectives carry no names: the first one that a rank launches is matched with the first one of every
  other rank. If each rank launched gradients as they become ready, ranks that use different layers would add the
  gradients of different parameters. `OrderedLaunches` keeps one order, which all ranks share.
- **Means.** The gradient of a mean loss over the whole batch is the mean of the ranks' gradients. `launch_mean` starts
  the all-reduce that computes it.
- **Flags.** Ranks may use different parameters. A parameter that a rank did not use contributes zeros to the mean, and
  a parameter that no rank used must keep `grad` as it is: an optimizer would apply momentum or weight decay to a
  gradient of zeros. `launch_flags` starts the all-reduce that tells every rank which parameters any rank used.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), section 3.2;
PyTorch's documentation of `torch.Tensor.register_post_accumulate_grad_hook`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakMethod

import torch
import torch.distributed as dist
from torch import Tensor

from reference.collectives import flatten, unflatten

Item = TypeVar("Item")
Pending = TypeVar("Pending")

NO_GRADIENT, HAS_GRADIENT, CHANGED_AFTER_LAUNCH = range(3)  # flags: where ranks differ, the larger one counts


def call_when_ready(parameters: Iterable[Tensor], hook: Callable[[Tensor], None]) -> None:
    """Call `hook`, a bound method, with a parameter each time backward has stored the parameter's gradient.

    The hooks hold the method's object weakly. Python's garbage collector cannot look into autograd's hooks, so an
    object that is held by a hook and holds the hook's parameter would never be freed.
    """
    method = WeakMethod(hook)

    def call(parameter: Tensor) -> None:
        if (ready := method()) is not None:
            ready(parameter)

    for parameter in parameters:
        if not (parameter.is_floating_point() or parameter.is_complex()):
            continue  # an integer parameter never has a gradient
        # torch refuses to register the hook on a frozen parameter, which may be unfrozen later, but keeps the hook
        # of a parameter that is frozen afterwards.
        trainable = parameter.requires_grad
        parameter.requires_grad_(True)
        parameter.register_post_accumulate_grad_hook(call)  # type: ignore[no-untyped-call]  # torch's
        parameter.requires_grad_(trainable)


class OrderedLaunches(Generic[Item, Pending]):
    """Collectives of several items, launched one by one in an order that is the same on every rank.

    Args:
        order: the items, in the same order on every rank.
        launch: starts the collective of one item without waiting for it. It must not hold this object: in a cycle, the
            tensors in `pending` would live until garbage collection.

    Attributes:
        order: the items.
        position: the position of each item in the order.
        pending: the results of `launch` for the items launched so far, in order.
    """

    def __init__(self, order: Sequence[Item], launch: Callable[[Item], Pending]) -> None:
        self.order, self._launch = order, launch
        self.position = {item: position for position, item in enumerate(order)}
        self.pending: list[Pending] = []

    @property
    def next(self) -> Item | None:
        """The item to launch next; None if all are launched."""
        return self.order[len(self.pending)] if len(self.pending) < len(self.order) else None

    def was_launched(self, item: Item) -> bool:
        """Whether the item's collective has been launched."""
        return self.position[item] < len(self.pending)

    def launch_next(self) -> None:
        """Launch the next item."""
        self.pending.append(self._launch(self.order[len(self.pending)]))

    def launch_rest(self) -> None:
        """Launch all items that have not been launched."""
        while self.next is not None:
            self.launch_next()


@dataclass(frozen=True)
class PendingMean:
    """An all-reduce under way: the mean over all ranks of some parameters' gradients, in one flat tensor."""

    parameters: Sequence[Tensor]
    flat: Tensor
    work: dist.Work

    def wait(self) -> list[Tensor]:
        """Wait for the all-reduce. Returns each parameter's mean gradient, in the parameter's shape."""
        self.work.wait()
        return unflatten(self.flat, like=self.parameters)


def launch_mean(parameters: Sequence[Tensor]) -> PendingMean:
    """Start to average the gradients of parameters of one dtype and device, without waiting.

    A copy of the gradients is sent, so they may change meanwhile. A parameter without a gradient on this rank
    contributes zeros. The copy is divided by the world size before it is summed: the sum of many float16 gradients can
    overflow, their mean cannot. Sparse gradients are sent as dense ones, because ranks may have different rows.
    """
    flat = flatten([torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in parameters])
    flat.div_(dist.get_world_size())
    work = dist.all_reduce(flat, async_op=True)
    return PendingMean(parameters, flat, work)


def store_gradient(parameter: Tensor, value: Tensor) -> None:
    """Write `value` into the parameter's gradient; make a dense gradient first if there is none, or a sparse one."""
    if parameter.grad is None or parameter.grad.is_sparse:
        parameter.grad = torch.empty_like(parameter, requires_grad=False)
    parameter.grad.detach().copy_(value)


def average_gradients(parameters: Sequence[Tensor]) -> None:
    """Replace the gradients of parameters of one dtype and device by their means over all ranks. Call on every rank."""
    flags = launch_flags([p.grad is not None for p in parameters], parameters[0].device).wait()
    means = launch_mean(parameters).wait()
    for parameter, mean, used_by_any_rank in zip(parameters, means, flags, strict=True):
        if used_by_any_rank:
            store_gradient(parameter, mean)


@dataclass(frozen=True)
class PendingFlags:
    """An all-reduce under way: the largest value that any rank has of each flag."""

    own: Sequence[int]
    highest: int
    largest: Tensor
    work: dist.Work

    def wait(self) -> list[int]:
        """Wait for the all-reduce. Returns the largest value of each flag, the same list on every rank.

        A rank whose own flags all have the highest value knows the result without reading it. On CUDA, reading would
        make the host wait for the GPU.
        """
        self.work.wait()
        if all(flag == self.highest for flag in self.own):
            return list(self.own)
        flags: list[int] = self.largest.tolist()
        return flags


def launch_flags(flags: Sequence[int], device: torch.device, *, highest: int = HAS_GRADIENT) -> PendingFlags:
    """Start to compute the largest value that any rank has of each flag, without waiting.

    Args:
        flags: this rank's flags, 0 to `highest`; as many on every rank.
        device: where to put them, so that the process group can send them.
        highest: the highest value that a flag can have, at most 255.
    """
    largest = torch.ones(len(flags), dtype=torch.uint8, device=device)
    for index, flag in enumerate(flags):
        if flag != 1:
            largest[index] = flag  # one by one: copying a whole list to a GPU would wait for the GPU
    work = dist.all_reduce(largest, op=dist.ReduceOp.MAX, async_op=True)
    return PendingFlags(flags, highest, largest, work)
