"""Fully sharded data parallelism (ZeRO stage 3): no rank keeps the whole model.

Each rank keeps an equal part of every parameter of two or more dimensions, of its gradient and so of its optimizer
state. A parameter is put together by an all-gather just before its module computes, in forward and again in backward,
and dropped after; meanwhile the next one's all-gather is under way. A whole gradient lives until a reduce-scatter,
which overlaps with the rest of backward, has left each rank its part of the mean. Vectors and scalars (biases, norms)
are next to nothing: they stay on every rank, their gradients averaged by one all-reduce at the end.

Collectives carry no names: the first that one rank starts is matched with the first of every other. So each forward
all-gathers every parameter once, in the order in which rank 0 first used them; each backward does so in reverse, and
reduce-scatters in reverse, in a process group of its own because gradients may be ready sooner or later. What a rank
did not use is started when its turn has come, or at the end. Only a parameter that is needed again after it was
dropped (a module called twice in a forward) is gathered out of turn: there, ranks must do the same.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020), section
5.3; Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (VLDB 2023);
`torch.distributed.fsdp.fully_shard`, which gathers by layers rather than by parameters.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import Optimizer

from reference.collectives import agree, broadcast, group_by_kind, launch_mean, store_gradient
from reference.fsdp.collective_order import BackwardPass, Gathers, Order
from reference.fsdp.hooked_modules import Layer, layers_of, tensors_in
from reference.fsdp.optimizer_state import gather_optimizer_state, split_optimizer_state
from reference.fsdp.sharded_parameter import ShardedParameter, gather_state, split_state
from reference.gradient_hooks import call_when_ready


class FSDP(nn.Module):
    """A module whose parameters of two or more dimensions are sharded over all ranks.

    At construction parameters and buffers become rank 0's, and each sharded parameter becomes, in place, this rank's
    part of it, 1-d: make the optimizer of `parameters()` then. It has to be element-wise, as SGD and Adam are. Before
    each training forward the buffers become rank 0's again. Every forward, also in evaluation, needs all ranks.

    Each backward adds its mean gradients to those that are there, so several may go before one step. A parameter that
    some ranks did not use contributes zero there; one that no rank used gets no gradient. A parameter has to be used in
    the forward of the module that holds it. `state_dict()` has this rank's parts; for the whole see `full_state_dict`.
    Convert or move the module before. `destroy_process_group()` ends the group made for the gradients, too.

    Args:
        module: the module to train; it is used, not copied.
        compute_dtype: what modules with sharded parameters compute in: those parameters are gathered in it, inputs and
            vectors are cast to it. Modules with vectors only (norms) compute in the vectors' own dtype. The parts,
            their gradients, the sums over ranks and the optimizer keep the parameter's own. None: nothing is cast.
    """

    def __init__(self, module: nn.Module, compute_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.module = module
        for tensor in (*module.parameters(), *module.buffers()):
            broadcast([tensor], source=0)
        matrices = [parameter for parameter in module.parameters() if parameter.dim() > 1]
        self._shards: dict[Tensor, ShardedParameter] = {p: ShardedParameter(p, compute_dtype) for p in matrices}
        self._order = Order(list(self._shards.values()))
        self._gradient_group: Any = dist.new_group()
        self._forward: Gathers | None = None
        self._backward: BackwardPass | None = None
        self._backward_is_over = False
        self._whole: dict[Tensor, ShardedParameter] = {one.whole: one for one in self._shards.values()}
        call_when_ready(self._whole, self._gradient_ready)
        for layer in layers_of(module, self._shards, compute_dtype):
            enter, leave = partial(self._enter, layer), partial(self._leave, layer)
            layer.module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
            layer.module.register_forward_hook(leave, with_kwargs=True, always_call=True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward; when training, rank 0's buffers first, and no trace of what was aborted."""
        if _inside_backward():  # activation checkpointing computes it again
            return self.module(*args, **kwargs)
        self._settle()
        if self.training and torch.is_grad_enabled():
            self._backward_is_over = False
            broadcast(self.module.buffers(), source=0)
        self._forward = Gathers(self._order.forward)
        output = self.module(*args, **kwargs)
        self._settle()
        return output

    def finish_gradient_synchronization(self) -> None:
        """Average the gradients of what is not sharded; the others are there. Call on every rank, after backward."""
        aborted = self._backward is not None
        self._settle()
        if not (aborted or self._backward_is_over):  # no gradient of a sharded parameter here; the others are waiting
            self._backward = BackwardPass(self._order, self._gradient_group)
            self._end_backward()
        self._backward_is_over = False
        replicated = [p for p in self.module.parameters() if p.requires_grad and p not in self._shards]
        for parameters in group_by_kind(replicated):
            used = agree([p.grad is not None for p in parameters], parameters[0].device)
            for parameter, mean, flag in zip(parameters, launch_mean(parameters).wait(), used, strict=True):
                if flag:
                    store_gradient(parameter, mean)

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their 2-norm is at most `max_norm`. Call on every rank, before the step.

        Returns:
            The norm that it was: 0-d, float64, the same on all ranks.
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
        """What the bare module's `state_dict` would be, copied, on every rank. Call on every rank."""
        self._settle()
        return gather_state(self.module.state_dict(keep_vars=True), self._shards)

    def load_full_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what the bare module's `state_dict` gave: each rank keeps its part. The argument stays as it is."""
        self.module.load_state_dict(split_state(state_dict, self.module.state_dict(keep_vars=True), self._shards))

    def full_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """What the state dict of the bare module's optimizer would be, on every rank. Call on every rank."""
        return gather_optimizer_state(optimizer, self._shards)

    def load_full_optimizer_state_dict(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        """Load what the bare module's optimizer gave: each rank keeps its parts. The argument stays as it is."""
        optimizer.load_state_dict(split_optimizer_state(state_dict, optimizer, self._shards))

    def _enter(self, layer: Layer, _: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        self._gathers().reach(layer.sharded)
        inputs: tuple[Any, Any] = layer.install((args, kwargs))
        return inputs

    def _leave(self, layer: Layer, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        layer.restore()
        if not _inside_backward():  # there, it is about to be needed
            self._gathers().leave(layer.sharded)
        handed_through = {id(tensor) for tensor in tensors_in((args, kwargs))}
        for tensor in tensors_in(output):
            if layer.sharded and tensor.requires_grad and id(tensor) not in handed_through:
                tensor.register_hook(partial(self._gradient_arrives, layer))  # type: ignore[no-untyped-call]  # torch's

    def _gradient_arrives(self, layer: Layer, _: Tensor) -> None:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "FSDP got a backward with create_graph=True, whose graph would need parameters that are freed by then. "
                "Take second derivatives without FSDP."
            )
        self._started_backward().arrive(layer)

    def _gradient_ready(self, whole: Tensor) -> None:
        gradient, whole.grad = whole.grad, None
        if gradient is not None:
            self._started_backward().gradient_ready(self._whole[whole], gradient)

    def _gathers(self) -> Gathers:
        """The all-gathers of what is running: a backward that computes a forward again, or a forward."""
        if _inside_backward():
            return self._started_backward().gathers
        if self._forward is None:  # somebody calls a module within this one
            self._settle()
            self._forward = Gathers(self._order.forward)
        return self._forward

    def _started_backward(self) -> BackwardPass:
        if self._backward is None:
            self._settle()
            self._backward = BackwardPass(self._order, self._gradient_group)
            Variable._execution_engine.queue_callback(self._end_backward)  # noqa: SLF001  as torch's own wrappers do
        return self._backward

    def _end_backward(self) -> None:
        """Store the mean gradients; called by autograd when a backward has gone well."""
        backward, self._backward = self._backward, None
        if backward is not None:
            self._order.used.clear()
            for one, mean in backward.means():
                one.add_gradient(mean)
            self._backward_is_over = True

    def _settle(self) -> None:
        """Complete the collectives of a forward, and of a backward that was aborted, whose gradients are dropped.

        Ranks that are aborted in one pass, wherever, thus stay in step; ranks in different passes do not.
        """
        forward, self._forward = self._forward, None
        if forward is not None:
            forward.finish()
            self._order.learn(forward)
        backward, self._backward = self._backward, None
        if backward is not None:
            list(backward.means())


def _inside_backward() -> bool:
    """Whether autograd is running on this thread: what computes a forward there repeats one."""
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001  as torch.utils.checkpoint asks
