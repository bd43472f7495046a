"""Sees backward passes begin and return, and the gradients of parameters become ready in between."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.autograd import graph

from pytest_ddp.observed.recording.clock import Backward
from pytest_ddp.observed.recording.record import Record

_ENGINE = "_engine_run_backward"
_INPUTS = 3  # where the engine finds them, after gradients, retain_graph and create_graph
_run_backward: Callable[..., Any] = getattr(graph, _ENGINE)


def watch_backward(record: Record) -> None:
    """Note every backward pass from now on: `Tensor.backward`, `autograd.backward` and `autograd.grad` meet here."""

    def run(outputs: Sequence[Any], *args: Any, **keywords: Any) -> Any:
        with _noted(record, accumulators(outputs, *args, **keywords)):
            return _run_backward(outputs, *args, **keywords)

    _replace(run)


def ignore_backward() -> None:
    """Note backward passes no longer."""
    _replace(_run_backward)


def _replace(run: Callable[..., Any]) -> None:
    for module in (graph, torch.autograd):  # the second has it by name
        setattr(module, _ENGINE, run)


@contextmanager
def _noted(record: Record, nodes: list[Any]) -> Iterator[None]:
    backward = record.backward_began(len(nodes))
    hooks = [_hook(record, backward, node) for node in nodes]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        record.backward_returned(backward)


def _hook(record: Record, backward: Backward, node: Any) -> Any:
    """Note the gradient before anything else sees it: hooks on the parameter itself come before those on its node."""
    parameter = node.variable
    ready = partial(_ready, record, backward, parameter)
    if not parameter._backward_hooks:  # noqa: SLF001  no public way
        return node.register_prehook(ready)
    others = dict(parameter._backward_hooks)  # noqa: SLF001  likewise
    parameter._backward_hooks.clear()  # noqa: SLF001  likewise; C++ runs them in the order in which they came in
    handle = parameter.register_hook(ready)
    parameter._backward_hooks.update(others)  # noqa: SLF001  likewise
    return handle


def _ready(record: Record, backward: Backward, parameter: torch.Tensor, _: Any) -> None:
    record.gradient_ready(backward, parameter)


def accumulators(outputs: Sequence[Any], *args: Any, **keywords: Any) -> list[Any]:
    """Return the nodes that will add to a `.grad` in a backward pass, given what autograd's engine is called with.

    With `inputs`, only theirs run; `autograd.grad` runs none.
    """
    if not keywords.get("accumulate_grad"):
        return []
    wanted = {id(tensor) for tensor in (args[_INPUTS] if len(args) > _INPUTS else ())}
    found = (node for node in _nodes(outputs) if type(node).__name__ == "AccumulateGrad")
    return [node for node in found if not wanted or id(node.variable) in wanted]


def _nodes(outputs: Sequence[Any]) -> Iterator[Any]:
    """Walk the graph below the outputs, which are tensors or `GradientEdge`s."""
    waiting = [_root(output) for output in outputs]
    seen = set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions]


def _root(output: Any) -> Any:
    if not isinstance(output, torch.Tensor):
        return output.node
    if output.grad_fn is None:
        return graph.get_gradient_edge(output).node if output.requires_grad else None
    return output.grad_fn
