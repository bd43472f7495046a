"""The collectives of one forward or backward over sharded parameters, in an order that is the same on every rank.

Which parameters a rank uses decides when it launches a collective, never which collectives it launches. A rank that
needs a parameter first launches all collectives that come before it in the order. What is left at the end of the pass
is launched then. So ranks may use different parameters, and a pass may be aborted at different places.

The order is that of the first forward on rank 0. A rank that later uses its parameters in another order still gets the
right values, but it keeps parameters whole for longer.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from reference.collectives import broadcast
from reference.fsdp.hooked_modules import HookedModule
from reference.fsdp.sharded_parameter import PendingPart, ShardedParameter
from reference.gradients import CHANGED_AFTER_LAUNCH, HAS_GRADIENT, NO_GRADIENT, OrderedLaunches, launch_flags

MOST_PENDING = 2  # reduce-scatters: each one keeps a whole gradient alive


class Orders:
    """The orders in which collectives are launched: the order of registration, until the first forward is over.

    Attributes:
        forward: of the all-gathers in a forward: first use first.
        backward: of the all-gathers in a backward: last use in forward first.
        gradients: of the reduce-scatters: last first use in forward first, because there the gradient is complete.
        used: the parameters that forwards have used since the last backward was over.
    """

    def __init__(self, parameters: list[ShardedParameter]) -> None:
        self.forward, self.backward, self.gradients = parameters, parameters[::-1], parameters[::-1]
        self.used: set[ShardedParameter] = set()
        self._is_known = not parameters

    def learn(self, forward: "Gathers") -> None:
        """Take note of what a forward has used. The first call is a collective: all ranks take over rank 0's order."""
        self.used |= set(forward.entered)
        if not self._is_known:
            self._is_known, registered = True, self.forward
            orders = [[*forward.entered], [*forward.entered][::-1], [*forward.left][::-1]]
            whole = [[registered.index(p) for p in dict.fromkeys([*order, *registered])] for order in orders]
            indices = torch.tensor(whole, device=registered[0].shard.device)
            broadcast([indices], source=0)
            self.forward, self.gradients, self.backward = ([registered[k] for k in ks] for ks in indices.tolist())


class Gathers:
    """The all-gathers of one pass: each parameter once, the next one while the module of this one computes.

    Attributes:
        entered: the parameters that were needed so far, in the order of their first use.
        left: the parameters that are not needed any more, in the order of their last use.
    """

    def __init__(self, order: Sequence[ShardedParameter]) -> None:
        self._launches: OrderedLaunches[ShardedParameter, None] = OrderedLaunches(order, ShardedParameter.launch_gather)
        self.entered: dict[ShardedParameter, None] = {}
        self.left: dict[ShardedParameter, None] = {}

    def reach(self, parameters: Sequence[ShardedParameter]) -> None:
        """Wait until these parameters are whole, and launch the all-gather of the next one."""
        for parameter in parameters:
            self._launch_until(self._launches.position[parameter] + 2)
            parameter.launch_gather()  # out of turn, if it was whole before and has been freed
        for parameter in parameters:
            parameter.wait()
            self.entered[parameter] = None

    def leave(self, parameters: Sequence[ShardedParameter]) -> None:
        """Free those of these parameters that no module uses any more."""
        for parameter in parameters:
            self.left.pop(parameter, None)
            self.left[parameter] = None
            if not parameter.users:
                parameter.free()

    def finish(self) -> None:
        """Launch the rest, because other ranks may need it, and free every parameter, one after the other."""
        for position, parameter in enumerate(self._launches.order):
            self._launch_until(position + 1)
            parameter.free()

    def _launch_until(self, end: int) -> None:
        """Launch all parameters whose position in the order is below `end`."""
        while len(self._launches.pending) < end and self._launches.next is not None:
            self._launches.launch_next()


class BackwardGathers(Gathers):
    """The all-gathers of a backward, which tells when a module begins, but not when it ends.

    So a module's parameters are freed when backward reaches another module after their gradients are complete. That a
    gradient is complete does not suffice: its module may also use the parameter detached, later in its backward.
    """

    def __init__(self, order: Sequence[ShardedParameter]) -> None:
        super().__init__(order)
        self._complete: set[ShardedParameter] = set()  # whose module has not begun again since
        self._running: dict[ShardedParameter, HookedModule] = {}

    def begin(self, module: HookedModule) -> None:
        """Make the parameters of a module whole, whose backward is about to begin; free those of modules that ended.

        A frozen parameter has no gradient that could be complete. If its module calls other modules, so that their
        backward comes between the parts of its own, the parameter is kept to the end of the pass.
        """
        for parameter, other in list(self._running.items()):
            is_done = parameter in self._complete or (other.is_leaf and not parameter.shard.requires_grad)
            if other is not module and is_done:
                del self._running[parameter]
                parameter.free()
        self._complete.difference_update(module.sharded)
        for parameter in module.sharded:
            if parameter not in self._running or self._running[parameter].is_leaf:
                self._running[parameter] = module
        self.reach(module.sharded)

    def gradient_complete(self, parameter: ShardedParameter) -> None:
        """Backward has computed the parameter's gradient."""
        self._complete.add(parameter)


class GradientMeans:
    """The reduce-scatters of a backward: each parameter's gradient once, whether this rank has one or not.

    Args:
        order: the parameters, in the order in which all ranks launch the reduce-scatters.
        expected: the parameters that this rank's forwards used. A parameter that is not among them is not waited for;
            if it gets a gradient all the same, that is sent late.
        group: the process group of the reduce-scatters.
    """

    def __init__(
        self, order: Sequence[ShardedParameter], expected: set[ShardedParameter], group: dist.ProcessGroup
    ) -> None:
        self._expected, self._group = expected, group
        self._ready: set[ShardedParameter] = set()
        self._gradients: dict[ShardedParameter, Tensor] = {}  # not launched yet
        self._late: dict[ShardedParameter, Tensor] = {}  # computed after the parameter's reduce-scatter was launched
        self._launches: OrderedLaunches[ShardedParameter, PendingPart] = OrderedLaunches(
            order, partial(_launch_mean, self._gradients, group)
        )

    def gradient_ready(self, parameter: ShardedParameter, gradient: Tensor) -> None:
        """Launch every reduce-scatter that is next in the order and due.

        A parameter can become ready twice in one backward (reentrant checkpointing). Its second gradient is added to
        the first one, or sent at the end if the first one has been launched.
        """
        waiting = self._late if self._launches.was_launched(parameter) else self._gradients
        waiting[parameter] = waiting[parameter] + gradient if parameter in waiting else gradient
        self._ready.add(parameter)
        while (following := self._launches.next) is not None and self._is_due(following):
            if len(self._launches.pending) >= MOST_PENDING:
                self._launches.pending[-MOST_PENDING].wait()
            self._launches.launch_next()

    def launch_rest(self) -> None:
        """Launch the reduce-scatters that backward did not launch."""
        self._launches.launch_rest()

    def wait(self) -> Iterator[tuple[ShardedParameter, Tensor]]:
        """Wait for everything. Yields each parameter that any rank used, with this rank's part of its mean gradient."""
        order = self._launches.order
        if not order:
            return
        own = [self._flag(parameter) for parameter in order]
        flags = launch_flags(own, order[0].shard.device, highest=CHANGED_AFTER_LAUNCH).wait()
        for parameter, pending, flag in zip(order, self._launches.pending, flags, strict=True):
            mean = pending.wait()
            if flag == CHANGED_AFTER_LAUNCH:
                mean = mean + parameter.launch_mean(self._late.get(parameter), self._group).wait()
            if flag != NO_GRADIENT:
                yield parameter, mean

    def _is_due(self, parameter: ShardedParameter) -> bool:
        return parameter in self._ready or parameter not in self._expected

    def _flag(self, parameter: ShardedParameter) -> int:
        if parameter in self._late:
            return CHANGED_AFTER_LAUNCH
        return HAS_GRADIENT if parameter in self._ready else NO_GRADIENT


def _launch_mean(
    gradients: dict[ShardedParameter, Tensor], group: dist.ProcessGroup, parameter: ShardedParameter
) -> PendingPart:
    """Start to average a parameter's gradient; one that is not in `gradients` counts as zeros."""
    return parameter.launch_mean(gradients.pop(parameter, None), group)


class BackwardPass:
    """The collectives of one backward: its all-gathers and its reduce-scatters.

    Attributes:
        gathers: the all-gathers.
    """

    def __init__(self, orders: Orders, group: dist.ProcessGroup) -> None:
        trainable = [parameter for parameter in orders.gradients if parameter.shard.requires_grad]
        self.gathers = BackwardGathers(orders.backward)
        self._means = GradientMeans(trainable, set(orders.used), group)

    def gradient_ready(self, parameter: ShardedParameter, gradient: Tensor) -> None:
        """Backward has computed a whole gradient: launch every reduce-scatter that is next in the order and due."""
        self._means.gradient_ready(parameter, gradient)
        self.gathers.gradient_complete(parameter)

    def finish(self) -> Iterator[tuple[ShardedParameter, Tensor]]:
        """Launch the rest and wait. Yields each parameter that any rank used, with its part of the mean gradient."""
        self._means.launch_rest()
        self.gathers.finish()
        yield from self._means.wait()
