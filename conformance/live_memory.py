"""Weighs what is in memory, wherever it is kept: autograd's graph, too, may keep a weight that no parameter shows.

Scripts that show a failure hold the source of this class.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Sees the memory of every tensor that an operation gives while it is entered, of `least` bytes and more.

    That of a rank's own parts, which are there all along, perhaps together, is left out. Memory is known by its
    storage, as in `torch.distributed._tools.mem_tracker`. What is made in C++, as the buffers of gloo are, is not seen.
    """

    def __init__(self, least: int, parts: Iterable[torch.UntypedStorage] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.least = least
        self._seen: Any = WeakIdKeyDictionary()
        self._parts = list(parts)

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and note what it gave."""
        given = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(given):
            if isinstance(tensor, torch.Tensor) and not hasattr(
                tensor, "__tensor_flatten__"
            ):  # what wraps others has none
                self._seen[tensor.untyped_storage()] = None
        return given

    def bytes(self) -> int:
        """Return how many bytes live now."""
        sizes = (one.nbytes() for one in self._seen if not any(one is part for part in self._parts))
        return sum(size for size in sizes if size >= self.least)
