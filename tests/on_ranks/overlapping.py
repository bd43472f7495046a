"""Wrappers that reduce gradients in right and wrong ways: overlapped, not overlapped, and with missing waits.

`finish()` is called after backward. A comment `# blocks` marks the line that blocks inside backward.
"""

import pickle
import random
import time
from collections.abc import Callable
from contextlib import nullcontext

import gated
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable, graph

from pytest_ddp import BlocksInsideBackward, observed

STEPS = 2
_LONGEST_PAUSE = 0.002  # seconds
WRAPPERS: dict[str, type["Wrapper"]] = {}


class Wrapper:
    """Averages the gradients of a module over the ranks."""

    def __init_subclass__(cls) -> None:
        WRAPPERS[cls.__name__] = cls

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = list(module.parameters())
        self.pending: list[tuple[torch.Tensor, dist.Work]] = []
        self.attach()

    def attach(self) -> None:
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.on_gradient)

    def on_gradient(self, parameter: torch.Tensor) -> None:
        self.launch(parameter)

    def launch(self, parameter: torch.Tensor) -> None:
        self.pending.append((parameter.grad, dist.all_reduce(parameter.grad, async_op=True)))

    def finish(self) -> None:
        pending, self.pending = self.pending, []
        for gradient, work in pending:
            work.wait()
            gradient.div_(dist.get_world_size())


class Overlapped(Wrapper):
    """Launches in hooks on parameters, waits after backward."""


class OverlappedOnNodes(Wrapper):
    """Launches in hooks on the AccumulateGrad nodes."""

    def attach(self) -> None:
        self.nodes = [graph.get_gradient_edge(parameter).node for parameter in self.parameters]
        for parameter, node in zip(self.parameters, self.nodes, strict=True):
            node.register_hook(lambda *_, parameter=parameter: self.on_gradient(parameter))


class OverlappedOnTensors(Wrapper):
    """Launches in hooks that see the gradient before it is stored, on copies."""

    def attach(self) -> None:
        for parameter in self.parameters:
            parameter.register_hook(lambda gradient, parameter=parameter: self.on_early(parameter, gradient))

    def on_early(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        early = gradient.clone()
        self.pending.append((parameter, early, dist.all_reduce(early, async_op=True)))

    def finish(self) -> None:
        pending, self.pending = self.pending, []
        for parameter, early, work in pending:
            work.wait()
            parameter.grad.copy_(early / dist.get_world_size())


class OverlappedWithFutures(Wrapper):
    """Divides in a callback of the future."""

    def launch(self, parameter: torch.Tensor) -> None:
        future = dist.all_reduce(parameter.grad, async_op=True).get_future()
        self.pending.append(future.then(lambda done: done.value()[0].div_(dist.get_world_size())))

    def finish(self) -> None:
        pending, self.pending = self.pending, []
        for future in pending:
            future.wait()


class OverlappedWithCollectedFutures(OverlappedWithFutures):
    """Waits for all futures at once."""

    def finish(self) -> None:
        pending, self.pending = self.pending, []
        torch.futures.wait_all(pending)


class OverlappedWithPolls(Wrapper):
    """Polls until everything is complete, instead of waiting."""

    def finish(self) -> None:
        while any([not work.is_completed() for _, work in self.pending]):  # noqa: C419  all are polled
            time.sleep(0)
        super().finish()


class OverlappedFinishedInCallback(Wrapper):
    """Waits in a callback that is queued to the end of backward."""

    def on_gradient(self, parameter: torch.Tensor) -> None:
        if not self.pending:
            Variable._execution_engine.queue_callback(super().finish)
        super().on_gradient(parameter)

    def finish(self) -> None:
        pass


class OverlappedFinishedInLastHook(Wrapper):
    """Waits in the hook of the last gradient."""

    def on_gradient(self, parameter: torch.Tensor) -> None:
        super().on_gradient(parameter)
        if len(self.pending) == len(self.parameters):
            super().finish()

    def finish(self) -> None:
        pass


class BlockingInHook(Wrapper):
    """Reduces in the hook, without async_op."""

    def launch(self, parameter: torch.Tensor) -> None:
        dist.all_reduce(parameter.grad)  # blocks
        parameter.grad.div_(dist.get_world_size())


class WaitingInHook(Wrapper):
    """Waits in the hook."""

    def on_gradient(self, parameter: torch.Tensor) -> None:
        self.launch(parameter)
        (_, work) = self.pending[-1]
        work.wait()  # blocks


class WaitingForTheOneBefore(Wrapper):
    """Waits for each operation when the next gradient is ready."""

    def on_gradient(self, parameter: torch.Tensor) -> None:
        if self.pending:
            self.pending[-1][1].wait()  # blocks
        self.launch(parameter)


class WaitingForFutureInHook(OverlappedWithFutures):
    """Waits for a future in the hook."""

    def on_gradient(self, parameter: torch.Tensor) -> None:
        self.launch(parameter)
        self.pending[-1].wait()  # blocks


class PollingInHook(Wrapper):
    """Polls in the hook until the operation is complete."""

    def on_gradient(self, parameter: torch.Tensor) -> None:
        self.launch(parameter)
        while not self.pending[-1][1].is_completed():  # blocks
            pass


class EverythingInFinish(Wrapper):
    """Does nothing before backward has returned."""

    def on_gradient(self, parameter: torch.Tensor) -> None:
        pass

    def finish(self) -> None:
        for parameter in self.parameters:
            self.launch(parameter)
        super().finish()


class EverythingAtTheEndOfBackward(Wrapper):
    """Queues everything to the end of backward."""

    ready = 0

    def on_gradient(self, _: torch.Tensor) -> None:
        if not self.ready:
            Variable._execution_engine.queue_callback(self.at_the_end)
        self.ready += 1

    def at_the_end(self) -> None:
        self.ready = 0
        for parameter in self.parameters:
            self.launch(parameter)


class Nothing(Wrapper):
    """Never communicates."""

    def on_gradient(self, parameter: torch.Tensor) -> None:
        pass


class ForgottenWait(Wrapper):
    """Waits for nothing."""

    def finish(self) -> None:
        pending, self.pending = self.pending, []
        for gradient, _ in pending:
            gradient.div_(dist.get_world_size())


class WaitOnAllButTheLast(Wrapper):
    """Forgets the operation that was launched last."""

    def finish(self) -> None:
        self.pending.pop()
        super().finish()


class WaitOnlyOnTheFirst(Wrapper):
    """Takes it for granted that operations complete in order, the other way round."""

    def finish(self) -> None:
        self.pending = self.pending[:1]
        super().finish()


class WaitOnlyOnTheLast(Wrapper):
    """Takes it for granted that operations complete in order."""

    def finish(self) -> None:
        self.pending = self.pending[-1:]
        super().finish()


class CopiedBeforeTheWait(Wrapper):
    """Takes the result out of its buffer, and waits then."""

    def launch(self, parameter: torch.Tensor) -> None:
        buffer = parameter.grad.clone()
        self.pending.append((parameter, buffer, dist.all_reduce(buffer, async_op=True)))

    def finish(self) -> None:
        pending, self.pending = self.pending, []
        for parameter, buffer, work in pending:
            parameter.grad.copy_(buffer / dist.get_world_size())
            work.wait()


class WaitOnACopy(Wrapper):
    """Reduces a copy, waits for it properly, and steps with the gradients of this rank."""

    def launch(self, parameter: torch.Tensor) -> None:
        copied = parameter.grad.clone()
        self.pending.append((copied, dist.all_reduce(copied, async_op=True)))


class ForgottenFuture(OverlappedWithFutures):
    """Divides in a callback of the future, and takes for granted that it has run."""

    def finish(self) -> None:
        self.pending = []


class DividedBeforeTheWait(Wrapper):
    """Divides what has not arrived."""

    def finish(self) -> None:
        pending, self.pending = self.pending, []
        for gradient, work in pending:
            gradient.div_(dist.get_world_size())
            work.wait()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def train(body: bytes) -> bytes:
    """Train with a wrapper, gated or not, and tell what became of it.

    Returns:
        The pickled verdicts, entries left unawaited, gradients and parameters after each step, and how it was refused.
    """
    name, text, seed = pickle.loads(body)  # noqa: S301  from our own test
    collectives = observed.collectives()
    pause = random.Random(f"{seed} {dist.get_rank()}")  # noqa: S311  no secret
    module = model()
    found: list[list[torch.Tensor]] = []
    refused = ""
    with collectives.gate(gated.schedule(text)) if text else nullcontext():
        try:
            _steps(module, WRAPPERS[name](module), found, lambda: time.sleep(pause.random() * _LONGEST_PAUSE))
        except BlocksInsideBackward as error:
            refused = str(error)
    numbers = [[tensor.tolist() for tensor in step] for step in found]
    return pickle.dumps((collectives.overlap, collectives.unawaited, numbers, refused))


def _steps(module: nn.Module, wrapper: Wrapper, found: list[list[torch.Tensor]], pause: Callable[[], None]) -> None:
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(dist.get_rank()))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = module(inputs).pow(2).mean()
        pause()
        loss.backward()
        pause()
        wrapper.finish()
        optimizer.step()
        found.append([tensor.detach().clone() for p in wrapper.parameters for tensor in (p, p.grad)])
