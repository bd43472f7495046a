"""The collectives of one forward or backward over sharded parameters, the same on every rank and in the same order.

What a rank uses decides when it starts them, never which ones: whoever needs a parameter starts all that come before
it, and what is left at the end is started then. So ranks may use different parameters, and be aborted at different
places of a pass. The order is that of the first forward; it may differ from what a rank does later, at the price of
keeping parameters whole for longer.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from reference.collectives import agree, broadcast
from reference.fsdp.hooked_modules import Layer
from reference.fsdp.sharded_parameter import PendingPart, ShardedParameter

NO_GRADIENT, HAS_GRADIENT, CHANGED_AFTER_LAUNCH = range(3)  # larger wins when ranks differ
MOST_UNDER_WAY = 2  # reduce-scatters: each keeps a whole gradient alive


class Order:
    """The orders in which collectives are started: that of registration until the first forward tells.

    Attributes:
        forward: of the all-gathers in a forward: by the first use.
        backward: of those in a backward: by the last use in forward, last comes first.
        gradients: of the reduce-scatters: by the first use, when the gradient is complete; last comes first.
        used: those that forwards have used since a backward was over.
    """

    def __init__(self, parameters: list[ShardedParameter]) -> None:
        self.forward, self.backward, self.gradients = parameters, parameters[::-1], parameters[::-1]
        self.used: set[ShardedParameter] = set()
        self._is_known = not parameters

    def learn(self, forward: "Gathers") -> None:
        """Take in what a forward has used. A collective the first time: the order is that of rank 0."""
        self.used |= set(forward.entered)
        if not self._is_known:
            self._is_known, registered = True, self.forward
            orders = [[*forward.entered], [*forward.entered][::-1], [*forward.left][::-1]]
            whole = [[registered.index(one) for one in dict.fromkeys([*order, *registered])] for order in orders]
            indices = torch.tensor(whole, device=registered[0].shard.device)
            broadcast([indices], source=0)
            self.forward, self.gradients, self.backward = ([registered[k] for k in ks] for ks in indices.tolist())


class Gathers:
    """The all-gathers of one pass: each parameter once.

    Attributes:
        entered: the parameters that were needed so far, in the order of their first use.
        left: those that are not needed any more, in the order of their last use.
    """

    def __init__(self, order: Sequence[ShardedParameter]) -> None:
        self._order, self._position = order, {one: k for k, one in enumerate(order)}
        self._launched = 0
        self.entered: dict[ShardedParameter, None] = {}
        self.left: dict[ShardedParameter, None] = {}

    def reach(self, parameters: Sequence[ShardedParameter]) -> None:
        """Wait until these parameters are whole, with the all-gather of the next one under way."""
        for one in parameters:
            self.launch_until(self._position[one] + 2)
            one.launch_gather()  # out of turn, if it was whole before and has been freed
        for one in parameters:
            one.wait()
            self.entered[one] = None

    def leave(self, parameters: Sequence[ShardedParameter]) -> None:
        """Free what nobody uses right now."""
        for one in parameters:
            self.left.pop(one, None)
            self.left[one] = None
            if not one.users:
                one.free()

    def launch_until(self, end: int) -> None:
        """Start all that come before this position."""
        while self._launched < min(end, len(self._order)):
            self._order[self._launched].launch_gather()
            self._launched += 1

    def finish(self) -> None:
        """Start what is left, for the ranks that need it, and free everything: one at a time, to need little memory."""
        for position, one in enumerate(self._order):
            self.launch_until(position + 1)
            one.free()


class BackwardPass:
    """The collectives of one backward: all-gathers, and the reduce-scatter of each gradient."""

    def __init__(self, order: Order, group: dist.ProcessGroup) -> None:
        self.gathers = Gathers(order.backward)
        self._order = [one for one in order.gradients if one.shard.requires_grad]
        self._position = {one: k for k, one in enumerate(self._order)}
        self._group = group
        self._expected = set(order.used)
        self._gradients: dict[ShardedParameter, Tensor] = {}
        self._late: dict[ShardedParameter, Tensor] = {}
        self._ready: set[ShardedParameter] = set()
        self._complete: set[ShardedParameter] = set()  # and not begun again since
        self._pending: list[PendingPart] = []
        self._running: dict[ShardedParameter, Layer] = {}

    def arrive(self, layer: Layer) -> None:
        """Make the parameters of a layer whole, as its backward is about to begin; free those of layers gone through.

        That is when another one begins, not when a gradient is ready: a layer may use its parameter detached, too. A
        frozen parameter has no gradient to tell; if its layer calls others, it is kept to the end.
        """
        for one, other in list(self._running.items()):
            is_done = one in self._complete or (other.is_leaf and not one.shard.requires_grad)
            if other is not layer and is_done:
                del self._running[one]
                one.free()
        self._complete.difference_update(layer.sharded)
        for one in layer.sharded:
            if one not in self._running or self._running[one].is_leaf:
                self._running[one] = layer
        self.gathers.reach(layer.sharded)

    def gradient_ready(self, one: ShardedParameter, gradient: Tensor) -> None:
        """Start every reduce-scatter whose turn has come.

        A parameter can be ready twice in one backward (reentrant checkpointing); what has not left grows, and what has
        left already is followed by the rest at the end.
        """
        waiting = self._late if self._position[one] < len(self._pending) else self._gradients
        waiting[one] = waiting[one] + gradient if one in waiting else gradient
        self._ready.add(one)
        self._complete.add(one)
        while len(self._pending) < len(self._order) and self._is_due(self._order[len(self._pending)]):
            if len(self._pending) >= MOST_UNDER_WAY:
                self._pending[-MOST_UNDER_WAY].wait()
            self._launch_next()

    def means(self) -> Iterator[tuple[ShardedParameter, Tensor]]:
        """Start what is left, wait for everything; each parameter used on any rank, and its part of the mean."""
        while len(self._pending) < len(self._order):
            self._launch_next()
        self.gathers.finish()
        for one, pending, flag in zip(self._order, self._pending, self._agreed_flags(), strict=True):
            mean = pending.wait()
            if flag == CHANGED_AFTER_LAUNCH:
                mean = mean + one.launch_mean(self._late.get(one), self._group).wait()
            if flag != NO_GRADIENT:
                yield one, mean

    def _is_due(self, one: ShardedParameter) -> bool:
        """Whether its gradient is there, or not to be expected; should it come all the same, it will be late."""
        return one in self._ready or one not in self._expected

    def _launch_next(self) -> None:
        one = self._order[len(self._pending)]
        self._pending.append(one.launch_mean(self._gradients.pop(one, None), self._group))

    def _agreed_flags(self) -> list[int]:
        if not self._order:
            return []
        return agree([self._flag(one) for one in self._order], self._order[0].shard.device)

    def _flag(self, one: ShardedParameter) -> int:
        if one in self._late:
            return CHANGED_AFTER_LAUNCH
        return HAS_GRADIENT if one in self._ready else NO_GRADIENT
