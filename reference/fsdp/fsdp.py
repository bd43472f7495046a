"""Fully sharded data parallelism (ZeRO stage 3): no rank keeps the whole model.

**Idea.** Each rank keeps an equal part of every parameter of two or more dimensions, of its gradient, and so of its
optimizer state. An all-gather makes a parameter whole just before its module computes, in forward and again in
backward; then it is freed. Meanwhile the next parameter's all-gather is under way. A whole gradient lives until a
reduce-scatter, which overlaps with the rest of backward, has given each rank its part of the mean. Vectors and scalars
(biases, norms) need little memory: every rank keeps them, and one all-reduce averages their gradients at the end.

**One order.** All ranks must launch their collectives in one order (see `gradients`). Each forward gathers every
parameter once, in the order in which rank 0 first used them. Each backward gathers them in reverse, and
reduce-scatters gradients in reverse; gradients have a process group of their own, because they may be ready sooner or
later than the next gather. A collective that a rank does not need is launched in its turn, or at the end. There is one
exception: a parameter that is needed again after it was freed (a module called twice in a forward) is gathered out of
turn, and there all ranks must do the same.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020), section
5.3; Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (VLDB 2023);
`torch.distributed.fsdp.fully_shard`, which gathers layers rather than single parameters.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import Optimizer

from reference.collectives import broadcast, group_by_kind
from reference.fsdp.collective_order import BackwardPass, Gathers, Orders
from reference.fsdp.full_state import gather_optimizer_state, gather_state, split_optimizer_state, split_state
from reference.fsdp.hooked_modules import HookedModule, hooked_modules, tensors_in
from reference.fsdp.sharded_parameter import ShardedParameter
from reference.gradients import average_gradients, call_when_ready


class FSDP(nn.Module):
    """A module whose parameters of two or more dimensions are sharded over all ranks.

    The constructor overwrites parameters and buffers by rank 0's, and turns each sharded parameter, in place, into this
    rank's part of it, 1-d. Make the optimizer of `parameters()` after that; it must be element-wise, as SGD and Adam
    are. Each training forward overwrites the buffers by rank 0's again. Every forward, also in evaluation, is a
    collective. Convert or move the module before it is wrapped.

    Each backward adds its mean gradients to those that are there, so several backwards may precede a step. A parameter
    that a rank did not use contributes zeros there; one that no rank used gets no gradient. A parameter must be used in
    the forward of the module that holds it. `state_dict()` has this rank's parts, `full_state_dict()` the whole.
    `destroy_process_group()` also ends the group that is made here for the gradients.

    Args:
        module: the module to train; it is used, not copied.
        compute_dtype: the dtype that modules with sharded parameters compute in: these parameters are gathered in it,
            inputs and vectors are cast to it. Modules that have only vectors (norms) compute in the vectors' own dtype.
            Parts, gradients, sums over ranks and the optimizer keep the parameter's own dtype. None: nothing is cast.
    """

    def __init__(self, module: nn.Module, compute_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.module = module
        for tensor in (*module.parameters(), *module.buffers()):
            broadcast([tensor], source=0)
        matrices = [parameter for parameter in module.parameters() if parameter.dim() > 1]
        self._shards: dict[Tensor, ShardedParameter] = {p: ShardedParameter(p, compute_dtype) for p in matrices}
        self._orders = Orders(list(self._shards.values()))
        self._gradient_group: Any = dist.new_group()
        self._forward: Gathers | None = None
        self._backward: BackwardPass | None = None
        self._backward_is_over = False
        self._whole: dict[Tensor, ShardedParameter] = {sharded.whole: sharded for sharded in self._shards.values()}
        call_when_ready(self._whole, self._gradient_ready)
        for hooked in hooked_modules(module, self._shards, compute_dtype):
            enter, leave = partial(self._enter, hooked), partial(self._leave, hooked)
            hooked.module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
            hooked.module.register_forward_hook(leave, with_kwargs=True, always_call=True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward. In training, it first ends aborted passes and overwrites buffers by rank 0's."""
        if _inside_backward():  # activation checkpointing repeats the forward
            return self.module(*args, **kwargs)
        self._settle()
        if self.training and torch.is_grad_enabled():
            self._backward_is_over = False
            broadcast(self.module.buffers(), source=0)
        self._forward = Gathers(self._orders.forward)
        output = self.module(*args, **kwargs)
        self._settle()
        return output

    def finish_gradient_synchronization(self) -> None:
        """Average the vectors' gradients; the others are averaged already. Call on every rank, after backward."""
        was_aborted = self._backward is not None
        self._settle()
        if not (was_aborted or self._backward_is_over):  # this rank's backward reached no sharded parameter
            self._backward = BackwardPass(self._orders, self._gradient_group)
            self._end_backward()
        self._backward_is_over = False
        vectors = [p for p in self.module.parameters() if p.requires_grad and p not in self._shards]
        for parameters in group_by_kind(vectors):
            average_gradients(parameters)

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their 2-norm is at most `max_norm`. Call on every rank, before the step.

        Returns:
            The norm before scaling: 0-d, float64, the same on all ranks.
        """
        gradients = {p: p.grad.detach() for p in self.module.parameters() if p.grad is not None}
        squares = torch.zeros(2, dtype=torch.float64, device=next(self.module.parameters()).device)
        for parameter, gradient in gradients.items():
            squares[int(parameter in self._shards)] += torch.linalg.vector_norm(gradient).double() ** 2
        dist.all_reduce(squares[1:])
        norm = squares.sum().sqrt()
        for gradient in gradients.values():
            gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def gather_full_params(self) -> dict[str, Tensor]:
        """Every parameter, whole, in its own dtype, by its name in the bare module. Call on every rank."""
        names = {name for name, _ in self.module.named_parameters(remove_duplicate=False)}
        return {name: value for name, value in self.full_state_dict().items() if name in names}

    def full_state_dict(self) -> dict[str, Any]:
        """A copy of the state dict that the bare module would have, on every rank. Call on every rank."""
        self._settle()
        return gather_state(self.module.state_dict(keep_vars=True), self._shards)

    def load_full_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of the bare module: each rank keeps its parts. The argument is not changed."""
        self.module.load_state_dict(split_state(state_dict, self.module.state_dict(keep_vars=True), self._shards))

    def full_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state dict that the optimizer of the bare module would have, on every rank. Call on every rank."""
        return gather_optimizer_state(optimizer, self._shards)

    def load_full_optimizer_state_dict(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        """Load a state dict of the bare module's optimizer: each rank keeps its parts. The argument is not changed."""
        optimizer.load_state_dict(split_optimizer_state(state_dict, optimizer, self._shards))

    def _enter(self, hooked: HookedModule, _: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Called before a module's forward."""
        self._gathers().reach(hooked.sharded)
        inputs: tuple[Any, Any] = hooked.install((args, kwargs))
        return inputs

    def _leave(self, hooked: HookedModule, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Called after a module's forward, also if it raised."""
        hooked.restore()
        if not _inside_backward():  # inside it, the module's backward comes next and needs the parameters
            self._gathers().leave(hooked.sharded)
        inputs = {id(tensor) for tensor in tensors_in((args, kwargs))}
        for tensor in tensors_in(output):
            if hooked.sharded and tensor.requires_grad and id(tensor) not in inputs:
                tensor.register_hook(partial(self._backward_reaches, hooked))  # type: ignore[no-untyped-call]  # torch's

    def _backward_reaches(self, hooked: HookedModule, _: Tensor) -> None:
        """Called when backward has computed the gradient of a module's output."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "FSDP does not support backward with create_graph=True: the graph would need parameters that have been "
                "freed. Compute second derivatives without FSDP."
            )
        self._current_backward().gathers.begin(hooked)

    def _gradient_ready(self, whole: Tensor) -> None:
        """Called when backward has computed the gradient of a whole parameter."""
        gradient, whole.grad = whole.grad, None
        if gradient is not None:
            self._current_backward().gradient_ready(self._whole[whole], gradient)

    def _gathers(self) -> Gathers:
        """The all-gathers of the pass that runs: a forward, or a backward that repeats a forward."""
        if _inside_backward():
            return self._current_backward().gathers
        if self._forward is None:  # a module within this one is called by itself
            self._settle()
            self._forward = Gathers(self._orders.forward)
        return self._forward

    def _current_backward(self) -> BackwardPass:
        if self._backward is None:
            self._settle()
            self._backward = BackwardPass(self._orders, self._gradient_group)
            Variable._execution_engine.queue_callback(self._end_backward)  # noqa: SLF001  as torch's own wrappers do
        return self._backward

    def _end_backward(self) -> None:
        """Store the mean gradients. Autograd calls it at the end of a backward that was not aborted."""
        backward, self._backward = self._backward, None
        if backward is not None:
            self._orders.used.clear()
            for parameter, mean in backward.finish():
                parameter.add_gradient(mean)
            self._backward_is_over = True

    def _settle(self) -> None:
        """Complete the collectives of a forward, and of a backward that was aborted, whose gradients are dropped.

        So the next collectives of all ranks match if the ranks were aborted in the same pass, at any place in it. They
        do not match if ranks were aborted in different passes.
        """
        forward, self._forward = self._forward, None
        if forward is not None:
            forward.finish()
            self._orders.learn(forward)
        backward, self._backward = self._backward, None
        if backward is not None:
            list(backward.finish())


def _inside_backward() -> bool:
    """Whether autograd runs on this thread: a forward that runs inside a backward is a repeated one."""
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001  as torch.utils.checkpoint asks
