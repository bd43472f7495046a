"""The modules that compute with parameters of their own, and what FSDP puts in place for their forward.

The forward of such a module reads its parameters as attributes. FSDP hooks run before and after it: the first one puts
the whole parameter in the place of the shard, the second one puts the shard back.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.utils._pytree import tree_leaves, tree_map_only

from reference.fsdp.sharded_parameter import ShardedParameter


class HookedModule:
    """A module that computes with parameters of its own.

    Attributes:
        module: the module.
        sharded: its sharded parameters, each once.
        is_leaf: whether it calls no other module; else their backward comes between the parts of its own.
    """

    def __init__(
        self, module: nn.Module, sharded: Mapping[Tensor, ShardedParameter], compute_dtype: torch.dtype | None
    ) -> None:
        attributes = list(_parameters_in_forward(module))
        self.module = module
        self._sharded = [(holder, name, sharded[p]) for holder, name, p in attributes if p in sharded]
        self._vectors = [(holder, name, p) for holder, name, p in attributes if p not in sharded]
        self.sharded = list(dict.fromkeys(parameter for *_, parameter in self._sharded))
        self.is_leaf = all(isinstance(child, NonDynamicallyQuantizableLinear) for child in module.children())
        self._dtype = None if compute_dtype is None else self._dtype_under(compute_dtype)

    def _dtype_under(self, compute_dtype: torch.dtype) -> torch.dtype | None:
        """The dtype that the module computes in: the vectors' own if it has no sharded parameters."""
        floating = [p for *_, p in self._vectors if p.is_floating_point()]
        return compute_dtype if self.sharded else floating[0].dtype if floating else None

    def install(self, inputs: Any) -> Any:
        """Put the whole parameters in place, and cast the vectors. Returns the inputs, cast."""
        for holder, name, parameter in self._sharded:
            parameter.users.add(self)
            parameter.whole.requires_grad_(parameter.shard.requires_grad)
            setattr(holder, name, parameter.whole)
        for holder, name, vector in self._vectors:
            # Not setattr: it refuses a cast tensor, which is not a parameter.
            holder._parameters[name] = self._cast(vector)  # type: ignore[assignment]  # noqa: SLF001
        return tree_map_only(Tensor, self._cast, inputs)

    def restore(self) -> None:
        """Put the shards and the vectors back."""
        for holder, name, parameter in self._sharded:
            parameter.users.discard(self)
            setattr(holder, name, parameter.shard)
        for holder, name, vector in self._vectors:
            holder._parameters[name] = vector  # noqa: SLF001  as `install`

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor if self._dtype is None or not tensor.is_floating_point() else tensor.to(self._dtype)


def hooked_modules(
    module: nn.Module, sharded: Mapping[Tensor, ShardedParameter], compute_dtype: torch.dtype | None
) -> list[HookedModule]:
    """All modules within `module` that compute with parameters of their own."""
    return [HookedModule(m, sharded, compute_dtype) for m in module.modules() if any(_parameters_in_forward(m))]


def _parameters_in_forward(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """The parameters that a module's forward reads: the module that holds each, its name there, and the parameter."""
    # nn.MultiheadAttention reads the weight of this child, and never calls the child.
    uncalled = [child for child in module.children() if isinstance(child, NonDynamicallyQuantizableLinear)]
    for holder in (module, *uncalled):
        for name, parameter in holder.named_parameters(recurse=False, remove_duplicate=False):
            yield holder, name, parameter


def tensors_in(value: Any, seen: set[int] | None = None) -> Iterable[Tensor]:
    """The tensors in the inputs or outputs of a module: in containers, and in the attributes of objects."""
    seen = set() if seen is None else seen
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, type | nn.Module) and id(leaf) not in seen:
            seen.add(id(leaf))
            yield from tensors_in(vars(leaf), seen)
