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

from conformance.components.fsdp.live_memory import LiveMemory
from conformance.ranks.boundary import stage
from conformance.ranks.context import Desk
from conformance.ranks.loading import with_stubs
from conformance.ranks.optimizer_memory import state_bytes, stored
from conformance.ranks.parameters import plain
from conformance.ranks.tracing import alive
from conformance.workload.models import Perceptron, call, fill, loss_of
from conformance.workload.numbers import under
from conformance.workload.schedule import OPTIMIZERS


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


def train(desk: Desk) -> None:
    """Train; answer with whole parameters before training and after steps, and with the bytes that this rank keeps."""
    scenario, case = desk.case.scenario, desk.case
    dtypes: list[torch.dtype] = []
    wrapped = _wrapped(desk, dtypes)
    if case.in_evaluation:
        with stage("`eval()` of the wrapped model"):
            wrapped.eval()
    with stage("construction of the optimizer"):
        optimizer = OPTIMIZERS[scenario.optimizer.kind](wrapped.parameters(), **scenario.optimizer.options)
    _gather(desk, wrapped, "start")
    for step in range(case.steps):
        memory = LiveMemory(case.whole[0], _storages(wrapped.parameters()))
        _step(desk, wrapped, optimizer, step, memory)
        memory.leave_out(_storages(p.grad for p in wrapped.parameters() if p.grad is not None))
        _weigh(desk, memory, "in_memory_after_a_step")
        desk.answer["parameters_kept"] = _kept(wrapped.parameters())
        if step in case.gathered:
            _gather(desk, wrapped, f"parameter/{step}")
        if case.counted:
            desk.answer[f"alive/{step}"] = torch.tensor(alive() - len(desk.answer))
    desk.answer["optimizer_state_kept"] = torch.tensor(state_bytes(optimizer) or 0)
    desk.answer["computed_half"] = torch.tensor(set(dtypes) == {torch.bfloat16})
    parts = [part.detach() for p in wrapped.parameters() for part in stored(p) if part.numel()]
    desk.answer["parts_are_half"] = torch.tensor(any(torch.equal(part, part.bfloat16().float()) for part in parts))


def _wrapped(desk: Desk, dtypes: list[torch.dtype]) -> Any:
    """Return the wrapped model, which adds to `dtypes` what it computes in; weigh the whole weights that are left."""
    memory = LiveMemory(desk.case.whole[0])
    with memory if desk.case.weighed else nullcontext():
        wrapped = _wrap(desk, dtypes)
    memory.leave_out(_storages(wrapped.parameters()))
    _weigh(desk, memory, "beside_parameters")
    return wrapped


def _wrap(desk: Desk, dtypes: list[torch.dtype]) -> Any:
    model = Perceptron(desk.case.scenario.model, dist.get_rank())
    fill(model, under(desk.given, "weight/"), under(desk.given, "buffer/"))
    with suppress(Exception):  # its import may raise anything; a submission that needs it has imported it before
        with_stubs(lambda: of_the_assignment(model), desk.task.submission)
    desk.answer["layers_of_torch"] = torch.tensor(type(model.layers[0]) is nn.Embedding)
    model.layers[0].register_forward_hook(lambda _, __, output: dtypes.append(output.dtype))
    return desk.call("get_fsdp", model, torch.bfloat16 if desk.case.half else None)


def _step(desk: Desk, wrapped: Any, optimizer: torch.optim.Optimizer, step: int, memory: LiveMemory) -> None:
    scenario = desk.case.scenario
    if not scenario.clears_late:
        optimizer.zero_grad()
    if scenario.evaluates:
        with stage("a forward without gradients"), torch.no_grad():
            output = call(scenario, wrapped, desk.given[f"x/{scenario.micro(step)[0]}"])
            desk.answer[f"evaluation/{step}"] = output.clone()
    micros = scenario.micro(step)
    for together in [micros] if scenario.joined else [[micro] for micro in micros]:
        with stage("forward"), memory if desk.case.weighed else nullcontext():
            loss = torch.stack([_loss(desk, wrapped, micro) for micro in together]).sum()
        if scenario.clears_late and scenario.is_first(together[0]):
            optimizer.zero_grad()
        desk.answer["whole_weights_kept_when_the_first_layer_has_computed"] = torch.tensor(memory.at_lookup)
        _weigh(desk, memory, "in_memory_after_forward")
        desk.answer["parameters_kept_after_forward"] = _kept(wrapped.parameters())
        with stage("backward"), memory if desk.case.weighed else nullcontext():
            torch.autograd.backward(loss)
        desk.answer["parameters_kept_after_backward"] = _kept(wrapped.parameters())
        desk.call("fsdp_on_after_backward", wrapped, optimizer)
    desk.answer["gradients_kept"] = _kept(p.grad for p in wrapped.parameters() if p.grad is not None)
    with stage("the optimizer's step"):
        optimizer.step()


def _loss(desk: Desk, wrapped: Any, micro: int) -> torch.Tensor:
    return loss_of(call(desk.case.scenario, wrapped, desk.given[f"x/{micro}"]), desk.given[f"y/{micro}"])


def _weigh(desk: Desk, memory: LiveMemory, moment: str) -> None:
    """Answer with the bytes of all whole weights in memory, if the case asks for them."""
    if desk.case.weighed:
        gc.collect()  # reference cycles keep tensors alive for a while
        desk.answer[f"whole_weights_kept_{moment}"] = torch.tensor(memory.bytes())


def _gather(desk: Desk, wrapped: Any, moment: str) -> None:
    """Answer with the gathered parameters under the model's own names, without a prefix before all of them."""
    names = desk.case.scenario.model.shapes
    found = desk.call("fsdp_gather_full_params", wrapped)
    with stage("a look at what `fsdp_gather_full_params` returned"):
        whole = dict(found)
        prefix = next((key.removesuffix(name) for name in names for key in whole if key.endswith(name)), "")
        desk.answer |= {f"{moment}/{n}": plain(whole[prefix + n]) for n in names if prefix + n in whole}


def _kept(tensors: Iterable[Any]) -> torch.Tensor:
    """Return the bytes of the storages behind these tensors, each counted once."""
    return torch.tensor(sum({storage.data_ptr(): storage.nbytes() for storage in _storages(tensors)}.values()))


def _storages(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    return [part.untyped_storage() for tensor in tensors for part in stored(tensor)]
