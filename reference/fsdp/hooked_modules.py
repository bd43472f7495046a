"""Modules that compute with parameters of their own: where these are put, what the module takes and gives.

The forward of such a module finds its parameters as its attributes. Sharded training puts the whole parameter there
before, and the shard back after.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.utils._pytree import tree_leaves, tree_map_only

from reference.fsdp.sharded_parameter import ShardedParameter


class Layer:
    """A module that computes with parameters of its own.

    Attributes:
        module: the module.
        sharded: those of its parameters that are sharded, each once.
        is_leaf: whether it calls no other modules, whose backward would come between the parts of its own.
    """

    def __init__(
        self, module: nn.Module, sharded: Mapping[Tensor, ShardedParameter], compute_dtype: torch.dtype | None
    ) -> None:
        places = list(_places(module))
        self.module = module
        self._sharded = [(holder, name, sharded[p]) for holder, name, p in places if p in sharded]
        self._vectors = [(holder, name, p) for holder, name, p in places if p not in sharded]
        self.sharded = list(dict.fromkeys(one for *_, one in self._sharded))
        self.is_leaf = all(isinstance(child, NonDynamicallyQuantizableLinear) for child in module.children())
        self._dtype = None if compute_dtype is None else self._dtype_under(compute_dtype)

    def _dtype_under(self, compute_dtype: torch.dtype) -> torch.dtype | None:
        """The dtype of its sharded parameters while they are whole; of its vectors, where it has nothing else."""
        floating = [p for *_, p in self._vectors if p.is_floating_point()]
        return compute_dtype if self.sharded else floating[0].dtype if floating else None

    def install(self, inputs: Any) -> Any:
        """Put the whole parameters in place; the inputs and vectors in the dtype to compute in."""
        for holder, name, one in self._sharded:
            one.users.add(self)
            one.whole.requires_grad_(one.shard.requires_grad)
            setattr(holder, name, one.whole)
        for holder, name, parameter in self._vectors:
            holder._parameters[name] = self._cast(parameter)  # type: ignore[assignment]  # noqa: SLF001  no leaf
        return tree_map_only(Tensor, self._cast, inputs)

    def restore(self) -> None:
        """Put back what was there before."""
        for holder, name, one in self._sharded:
            one.users.discard(self)
            setattr(holder, name, one.shard)
        for holder, name, parameter in self._vectors:
            holder._parameters[name] = parameter  # noqa: SLF001  as setattr, which refuses what `install` puts there

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor if self._dtype is None or not tensor.is_floating_point() else tensor.to(self._dtype)


def layers_of(
    module: nn.Module, sharded: Mapping[Tensor, ShardedParameter], compute_dtype: torch.dtype | None
) -> list[Layer]:
    """All modules within `module` that compute with parameters of their own."""
    return [Layer(m, sharded, compute_dtype) for m in module.modules() if any(True for _ in _places(m))]


def _places(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """The parameters in a module's forward, and the module and the name under which each is found."""
    # nn.MultiheadAttention computes with the weight of this child itself, and never calls it.
    uncalled = [child for child in module.children() if isinstance(child, NonDynamicallyQuantizableLinear)]
    for holder in (module, *uncalled):
        for name, parameter in holder.named_parameters(recurse=False, remove_duplicate=False):
            yield holder, name, parameter


def tensors_in(output: Any, seen: set[int] | None = None) -> Iterable[Tensor]:
    """The tensors in whatever a module returns: containers, and objects with attributes."""
    seen = set() if seen is None else seen
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor):
            yield leaf
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, type | nn.Module) and id(leaf) not in seen:
            seen.add(id(leaf))
            yield from tensors_in(vars(leaf), seen)
