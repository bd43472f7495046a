"""Trains a network with sharded parameters, and measures the memory that a rank keeps."""

import gc
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from importlib import import_module
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from conformance.ranks.boundary import stage
from conformance.ranks.context import Context
from conformance.ranks.loading import with_stubs
from conformance.ranks.optimizer_memory import state_bytes, stored
from conformance.ranks.parameters import whole_by_name
from conformance.ranks.tracing import alive
from conformance.workload.models import Perceptron, call, fill, loss_on
from conformance.workload.schedule import OPTIMIZERS


class _AbortedError(Exception):
    """Raised by a backward pass that a case aborts."""


class Abort:
    """A listener of a model that raises if `now`; a copy of the model, made by pickling too, has it as well."""

    now = False

    def __call__(self, layer: int) -> None:
        """Raise if backward has come to the first layer."""
        if self.now and layer == 0:
            raise _AbortedError


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Counts the storages of at least `least` bytes that operations return while this mode is active.

    Weights that only autograd's graph keeps are among them; the rank's own shards are not. Storages identify memory, as
    in `torch.distributed._tools.mem_tracker`. Memory of C++ code, such as gloo's buffers, is not counted.

    Attributes:
        at_lookup: the most bytes alive right after an embedding lookup: an operation from integers to floats.
    """

    def __init__(self, least: int, parts: Iterable[torch.UntypedStorage] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.least, self.at_lookup = least, 0
        self._seen: Any = WeakIdKeyDictionary()
        self._parts = list(parts)

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and record the storages of its results."""
        given = function(*args, **(kwargs or {}))
        results, inputs = ([x for x in tree_leaves(y) if isinstance(x, torch.Tensor)] for y in (given, (args, kwargs)))
        for tensor in results:
            # neither meta tensors nor tensors that wrap others have a storage
            if not (tensor.is_meta or hasattr(tensor, "__tensor_flatten__")):
                self._seen[tensor.untyped_storage()] = None
        if any(x.is_floating_point() for x in results) and any(x.dtype == torch.int64 for x in inputs):
            self.at_lookup = max(self.at_lookup, self.bytes())
        return given

    def leave_out(self, parts: Iterable[torch.UntypedStorage]) -> None:
        """Do not count these storages."""
        self._parts += parts

    def bytes(self) -> int:
        """Return the number of bytes that are alive now."""
        sizes = (one.nbytes() for one in self._seen if not any(one is part for part in self._parts))
        return sum(size for size in sizes if size >= self.least)


def of_the_assignment(model: nn.Module) -> None:
    """Change the classes of torch's layers in a model to those of the assignment; the layers compute as before.

    FSDP in the CS336 assignment shards `Linear` and `Embedding` of `cs336_basics.model`, and most submissions look for
    exactly these classes.

    Raises:
        ImportError: there is no `cs336_basics.model`.
    """
    theirs = import_module("cs336_basics.model")
    for name in ("Linear", "Embedding", "RMSNorm"):
        kind = getattr(theirs, name, None)
        for layer in model.modules():
            if isinstance(layer, getattr(nn, name)) and isinstance(kind, type):
                layer.forward = MethodType(type(layer).forward, layer)
                layer.__class__ = kind


def train(context: Context) -> None:
    """Train; answer with whole parameters before training and after steps, and with the bytes that this rank keeps."""
    case = context.case
    dtypes: list[torch.dtype] = []
    wrapped = _wrapped(context, dtypes)
    if case.in_evaluation:
        with stage("`eval()` of the wrapped model"):
            wrapped.eval()
    with stage("construction of the optimizer"):
        optimizer = OPTIMIZERS[case.optimizer.kind](wrapped.parameters(), **case.optimizer.options)
    _gather(context, wrapped, "start")
    for step in range(case.steps):
        memory = LiveMemory(case.whole[0], _storages(wrapped.parameters()))
        _step(context, wrapped, optimizer, step, memory)
        memory.leave_out(_storages(p.grad for p in wrapped.parameters() if p.grad is not None))
        _weigh(context, memory, "in_memory_after_a_step")
        context.answer["parameters_kept"] = _kept(wrapped.parameters())
        elements = sum(part.numel() for parameter in wrapped.parameters() for part in stored(parameter))
        context.answer["elements_of_parameters"] = torch.tensor(elements)
        if step in case.gathered:
            _gather(context, wrapped, f"parameter/{step}")
        if case.counted:
            context.answer[f"alive/{step}"] = torch.tensor(alive() - len(context.answer))
    context.answer["optimizer_state_kept"] = torch.tensor(state_bytes(optimizer) or 0)
    context.answer["computed_half"] = torch.tensor(set(dtypes) == {torch.bfloat16})
    parts = [part.detach() for p in wrapped.parameters() for part in stored(p) if part.numel()]
    context.answer["parts_are_half"] = torch.tensor(any(torch.equal(part, part.bfloat16().float()) for part in parts))


def _wrapped(context: Context, dtypes: list[torch.dtype]) -> Any:
    """Return the wrapped model, which adds to `dtypes` what it computes in; weigh the whole weights that are left."""
    memory = LiveMemory(context.case.whole[0])
    with memory if context.case.weighed else nullcontext():
        wrapped = _wrap(context, dtypes)  # a function, so that no variable here keeps the bare model
    memory.leave_out(_storages(wrapped.parameters()))
    _weigh(context, memory, "beside_parameters")
    return wrapped


def _wrap(context: Context, dtypes: list[torch.dtype]) -> Any:
    model = Perceptron(context.case.model, dist.get_rank())
    fill(model, context.inputs.weights, context.inputs.buffers)
    with suppress(Exception):  # its import may raise anything; a submission that needs it has imported it before
        with_stubs(lambda: of_the_assignment(model), context.task.submission)
    context.answer["layers_of_torch"] = torch.tensor(type(model.layers[0]) is nn.Embedding)
    model.listener = Abort() if context.case.aborts is not None else None
    model.layers[0].register_forward_hook(lambda _, __, output: dtypes.append(output.dtype))
    return context.call("get_fsdp", model, torch.bfloat16 if context.case.half else None)


def _step(context: Context, wrapped: Any, optimizer: torch.optim.Optimizer, step: int, memory: LiveMemory) -> None:
    case, batches = context.case, context.inputs.batches
    if not case.clears_late:
        optimizer.zero_grad()
    micros = case.micro(step)
    if case.evaluates:
        with stage("a forward without gradients"), torch.no_grad():
            context.answer[f"evaluation/{step}"] = call(case, wrapped, batches[micros[0]][0]).clone()
    if step == case.aborts:
        _abort(context, wrapped, step)
        optimizer.zero_grad()
    for together in [micros] if case.joined else [[micro] for micro in micros]:
        with stage("forward"), memory if case.weighed else nullcontext():
            loss = torch.stack([loss_on(case, wrapped, batches[micro]) for micro in together]).sum()
        if case.clears_late and case.is_first(together[0]):
            optimizer.zero_grad()
        context.answer["whole_weights_kept_when_the_first_layer_has_computed"] = torch.tensor(memory.at_lookup)
        _weigh(context, memory, "in_memory_after_forward")
        context.answer["parameters_kept_after_forward"] = _kept(wrapped.parameters())
        with stage("backward"), memory if case.weighed else nullcontext():
            torch.autograd.backward(loss)
        context.answer["parameters_kept_after_backward"] = _kept(wrapped.parameters())
        context.call("fsdp_on_after_backward", wrapped, optimizer)
    context.answer["gradients_kept"] = _kept(p.grad for p in wrapped.parameters() if p.grad is not None)
    with stage("the optimizer's step"):
        optimizer.step()


def _abort(context: Context, wrapped: Any, step: int) -> None:
    """Run a backward pass of another batch that raises when it comes to the first layer."""
    Abort.now = True
    with stage("a backward pass that raises"), suppress(_AbortedError):
        torch.autograd.backward(loss_on(context.case, wrapped, context.inputs.batches[-1 if step == 0 else 0]))
    Abort.now = False


def _weigh(context: Context, memory: LiveMemory, moment: str) -> None:
    """Answer with the bytes of all whole weights in memory, if the case asks for them."""
    if context.case.weighed:
        gc.collect()  # reference cycles keep tensors alive for a while
        context.answer[f"whole_weights_kept_{moment}"] = torch.tensor(memory.bytes())


def _gather(context: Context, wrapped: Any, moment: str) -> None:
    """Answer with the gathered parameters under the model's own names, without a prefix before all of them."""
    found = context.call("fsdp_gather_full_params", wrapped)
    with stage("a look at what `fsdp_gather_full_params` returned"):
        context.keep(moment, whole_by_name(found, context.case.model.shapes))


def _kept(tensors: Iterable[Any]) -> torch.Tensor:
    """Return the bytes of the storages behind these tensors, each counted once."""
    return torch.tensor(sum({storage.data_ptr(): storage.nbytes() for storage in _storages(tensors)}.values()))


def _storages(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    return [part.untyped_storage() for tensor in tensors for part in stored(tensor)]
