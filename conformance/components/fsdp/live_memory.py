"""Measures the tensors in memory, including weights that only autograd's graph keeps."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Counts the storages of at least `least` bytes that operations return while this mode is active.

    It does not count the storages of the rank's own shards. Storages identify memory, as in
    `torch.distributed._tools.mem_tracker`. Memory that C++ code allocates, such as gloo's buffers, is not counted.

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
            if not (
                tensor.is_meta or hasattr(tensor, "__tensor_flatten__")
            ):  # neither these nor tensors that wrap others have a storage
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
