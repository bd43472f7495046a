"""Finds the model's parameters in a wrapped model; copies them, and counts their hooks."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from conformance.ranks.boundary import offers
from conformance.ranks.optimizer_memory import local_part, stored
from conformance.workload.numbers import Tensors

Named = dict[str, torch.nn.Parameter]


def parameters_by_name(wrapped: Any, names: Sequence[str], before: Named) -> tuple[Named, list[str]]:
    """Return the wrapped model's parameters under the model's own names, and the names of its further parameters.

    A wrapper may hold a copy of the model, and may put one fixed prefix before every name. It may also rename the
    parameters that the model had before; copies with other names cannot be told apart, and are refused.

    Raises:
        TypeError: the wrapper offers no `named_parameters` and holds no `module` that does, or it shards a parameter.
        ValueError: a parameter of the model is not among those of the wrapper.
    """
    own, extra = _by_name(wrapped, names, before)
    for name, parameter in own.items():
        if (part := local_part(parameter)).shape != parameter.shape:
            raise TypeError(
                f"the parameter {name!r} of the wrapped model is sharded: this rank holds {list(part.shape)} of "
                f"{list(parameter.shape)}; a data-parallel wrapper keeps each parameter whole on every rank"
            )
    return own, extra


def _by_name(wrapped: Any, names: Sequence[str], before: Named) -> tuple[Named, list[str]]:
    seen = dict(holder(wrapped).named_parameters())
    prefix = next((name.removesuffix(names[0]) for name in seen if name.endswith(names[0])), "")
    absent = [name for name in names if prefix + name not in seen]
    if absent and all(name in before and _is_among(before[name], seen.values()) for name in names):
        own = {name: before[name] for name in names}
        return own, [name for name, parameter in seen.items() if not _is_among(parameter, own.values())]
    if absent:
        raise ValueError(f"the wrapped model has no parameter {absent[0]!r}; it has {', '.join(seen) or 'none'}")
    own = {name: seen[prefix + name] for name in names}
    return own, [name.removeprefix(prefix) for name in seen if name.removeprefix(prefix) not in own]


def _is_among(parameter: torch.nn.Parameter, others: Iterable[torch.nn.Parameter]) -> bool:
    return any(parameter is other for other in others)


def whole_by_name(found: Any, names: Iterable[str]) -> Tensors:
    """Return what a mapping has under the model's own names; it may have one fixed prefix before every name."""
    whole = dict(found)
    prefix = next((key.removesuffix(name) for name in names for key in whole if key.endswith(name)), "")
    return {name: plain(whole[prefix + name]) for name in names if prefix + name in whole}


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense copy of a whole tensor, of the class `torch.Tensor`, whatever the class of the tensor is."""
    dense = local_part(tensor).detach().clone().to_dense()
    return dense if type(dense) is torch.Tensor else torch.empty(dense.shape, dtype=dense.dtype).copy_(dense)


def addresses(named: Named) -> dict[str, list[int]]:
    """Return the memory addresses of each parameter; a wrapper subclass may have several, or none."""
    return {name: [part.data_ptr() for part in stored(parameter)] for name, parameter in named.items()}


def hooks_on(parameters: Iterable[torch.nn.Parameter]) -> int:
    """Return the number of hooks on these parameters, without those on nodes of autograd's graph."""
    return sum(len(hooks) for parameter in parameters for hooks in _hooks(parameter))


def hooked_before_stored(named: Named) -> list[str]:
    """Return the names of parameters with a hook that gets a gradient before it is stored."""
    return [name for name, parameter in named.items() if parameter._backward_hooks]  # noqa: SLF001  torch's only way


def take_hooks_off(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Remove every hook that is on these parameters."""
    for parameter in parameters:
        for hooks in _hooks(parameter):
            hooks.clear()


def _hooks(parameter: torch.nn.Parameter) -> Iterator[dict[int, Any]]:
    found = (getattr(parameter, kind, None) for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"))
    return (hooks for hooks in found if hooks)


def holder(wrapped: Any) -> Any:
    """Return the object that has `named_parameters`: what the adapter returned, or its `module`.

    Raises:
        TypeError: neither has it.
    """
    if offers(wrapped, "named_parameters"):
        return wrapped
    if offers(wrapped, "module") and offers(wrapped.module, "named_parameters"):
        return wrapped.module
    raise TypeError(
        f"{type(wrapped).__name__} is no torch.nn.Module: the wrapper must be one, or offer named_parameters()"
    )
