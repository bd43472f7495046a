"""Finds the model's parameters again after a wrapper has taken the model, and counts what hangs on them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

Named = dict[str, torch.nn.Parameter]


def parameters_by_name(wrapped: Any, names: Sequence[str], before: Named) -> tuple[Named, list[str]]:
    """Return the wrapped model's parameters under the model's own names, and the names of any that it has besides.

    A wrapper may put one fixed prefix before every name, and may hold a copy of the model. It may also give new names
    to the very parameters that the model had before, in any order; new names of copies say nothing, and are refused.

    Raises:
        TypeError: the wrapper offers no `named_parameters`, and holds no `module` that does.
        ValueError: a parameter of the model is not among those of the wrapper.
    """
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


def places_of(named: Named) -> dict[str, int]:
    """Return where in memory each parameter is."""
    return {name: parameter.data_ptr() for name, parameter in named.items()}


def hooks_on(parameters: Iterable[torch.nn.Parameter]) -> int:
    """Return how many hooks are on these parameters; those on nodes of autograd's graph cannot be counted."""
    return sum(len(hooks) for parameter in parameters for hooks in _hooks(parameter))


def take_hooks_off(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Remove every hook that is on these parameters."""
    for parameter in parameters:
        for hooks in _hooks(parameter):
            hooks.clear()


def _hooks(parameter: torch.nn.Parameter) -> Iterator[dict[int, Any]]:
    found = (getattr(parameter, kind, None) for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"))
    return (hooks for hooks in found if hooks)


def holder(wrapped: Any) -> Any:
    """Return what offers the parameters: what the adapter returned, or the `module` that it holds.

    Raises:
        TypeError: neither does.
    """
    for found in (wrapped, getattr(wrapped, "module", None)):
        if hasattr(found, "named_parameters"):
            return found
    raise TypeError(
        f"{type(wrapped).__name__} is no torch.nn.Module: the wrapper must be one, or offer named_parameters()"
    )
