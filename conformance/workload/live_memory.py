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

    Attributes:
        at_lookup: the most bytes that lived when an operation had made numbers of ids, as an embedding does.
    """

    def __init__(self, least: int, parts: Iterable[torch.UntypedStorage] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.least, self.at_lookup = least, 0
        self._seen: Any = WeakIdKeyDictionary()
        self._parts = list(parts)

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and note what it gave."""
        given = function(*args, **(kwargs or {}))
        results, inputs = ([x for x in tree_leaves(y) if isinstance(x, torch.Tensor)] for y in (given, (args, kwargs)))
        for tensor in results:
            if not (tensor.is_meta or hasattr(tensor, "__tensor_flatten__")):  # these, and what wraps others, have none
                self._seen[tensor.untyped_storage()] = None
        if any(x.is_floating_point() for x in results) and any(x.dtype == torch.int64 for x in inputs):
            self.at_lookup = max(self.at_lookup, self.bytes())
        return given

    def leave_out(self, parts: Iterable[torch.UntypedStorage]) -> None:
        """Leave out the memory of a rank's own parts."""
        self._parts += parts

    def bytes(self) -> int:
        """Return how many bytes live now."""
        sizes = (one.nbytes() for one in self._seen if not any(one is part for part in self._parts))
        return sum(size for size in sizes if size >= self.least)
