"""Records when backward passes begin and return, and when gradients of parameters become ready."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd import graph

from pytest_ddp.observed.recording.record import Backward, Record
from pytest_ddp.torch_internals import engine, has_hooks, register_first_hook, set_engine

_INPUTS = 3  # the engine's argument at this index, after the gradients, retain_graph and create_graph
_run_backward = engine()


def patch_backward(record: Record) -> None:
    """Record backward passes from now on: `Tensor.backward`, `autograd.backward` and `autograd.grad`."""

    def run(outputs: Sequence[Any], *args: Any, **keywords: Any) -> Any:
        nodes = accumulators(outputs, *args, **keywords)
        backward = record.backward_began(len(nodes))
        hooks = [_register_hook(record, backward, node) for node in nodes]
        try:
            return _run_backward(outputs, *args, **keywords)
        finally:
            for hook in hooks:
                hook.remove()
            record.backward_returned(backward)

    set_engine(run)


def restore_backward() -> None:
    """Stop recording backward passes."""
    set_engine(_run_backward)


def accumulators(outputs: Sequence[Any], *args: Any, **keywords: Any) -> list[Any]:
    """Return the nodes that will add to a parameter's `.grad`, given the arguments of autograd's engine.

    With `inputs`, only the nodes of those parameters run; `autograd.grad` runs none.
    """
    if not keywords.get("accumulate_grad"):
        return []
    inputs = {id(tensor) for tensor in (args[_INPUTS] if len(args) > _INPUTS else ())}
    found = (node for node in _nodes(outputs) if type(node).__name__ == "AccumulateGrad")
    return [node for node in found if not inputs or id(node.variable) in inputs]


def _register_hook(record: Record, backward: Backward, node: Any) -> Any:
    """Register a hook that runs before all others: first come those on the parameter, then those on its node."""
    parameter = node.variable
    ready = partial(record.gradient_ready, backward, parameter)
    return register_first_hook(parameter, ready) if has_hooks(parameter) else node.register_prehook(ready)


def _nodes(outputs: Sequence[Any]) -> Iterator[Any]:
    """Yield the nodes of the graph that computed the outputs, which are tensors or `GradientEdge`s."""
    pending = [_root(output) for output in outputs]
    seen = set[Any]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        pending += [following for following, _ in node.next_functions]


def _root(output: Any) -> Any:
    if not isinstance(output, torch.Tensor):
        return output.node
    is_leaf = output.requires_grad and output.grad_fn is None
    return graph.get_gradient_edge(output).node if is_leaf else output.grad_fn
