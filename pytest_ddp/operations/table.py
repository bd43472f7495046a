"""The operations of a process group: each method of `ProcessGroup` that communicates, and what it does.

torch renames methods between versions: methods that do the same have one name here.
"""

from dataclasses import dataclass

SEND, RECV = "send", "recv"


@dataclass(frozen=True)
class Operation:
    """What a method of `ProcessGroup` does.

    Attributes:
        name: what torch.distributed calls it.
        results_first: whether its first argument is the result, and its second the input.
        takes: whether it takes tensors of this rank; a receive does not.
        rooted: whether it has a root.
        reduces: whether it has a reduction.
        splits: whether its third and fourth arguments say how tensors are split.
        ragged: whether tensors of different ranks may have different shapes.
        blocks: whether it waits for the other ranks itself, rather than return a handle to wait for.
    """

    name: str
    results_first: bool = False
    takes: bool = True
    rooted: bool = False
    reduces: bool = False
    splits: bool = False
    ragged: bool = False
    blocks: bool = False

    @property
    def point_to_point(self) -> bool:
        """Whether only two ranks take part."""
        return self.name in {SEND, RECV}

    @property
    def must_match(self) -> tuple[str, ...]:
        """The fields of a `Fingerprint` in which all ranks must agree."""
        asked = {"root": self.rooted, "reduction": self.reduces, "dtype": True, "shapes": not self.ragged}
        return tuple(field for field, must in asked.items() if must)


_ALL_GATHER = Operation("all_gather_into_tensor", results_first=True)
_ALL_GATHERS = Operation("all_gather_into_tensor_coalesced", results_first=True)
_REDUCE_SCATTER = Operation("reduce_scatter_tensor", results_first=True, reduces=True)
_REDUCE_SCATTERS = Operation("reduce_scatter_tensor_coalesced", results_first=True, reduces=True)
_ALL_TO_ALL = Operation("all_to_all_single", results_first=True, splits=True, ragged=True)
_GATHER = Operation("gather_into_tensor", results_first=True, rooted=True)
METHODS = {
    "allreduce": Operation("all_reduce", reduces=True),
    "allreduce_coalesced": Operation("all_reduce_coalesced", reduces=True),
    "allgather": Operation("all_gather", results_first=True, ragged=True),
    "_allgather_base": _ALL_GATHER,
    "all_gather_single": _ALL_GATHER,
    "allgather_coalesced": Operation("all_gather_coalesced", results_first=True),
    "allgather_into_tensor_coalesced": _ALL_GATHERS,
    "all_gather_single_coalesced": _ALL_GATHERS,
    "gather_into_tensor": _GATHER,
    "gather_single": _GATHER,
    "reduce_scatter": Operation("reduce_scatter", results_first=True, reduces=True),
    "_reduce_scatter_base": _REDUCE_SCATTER,
    "reduce_scatter_single": _REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced": _REDUCE_SCATTERS,
    "reduce_scatter_single_coalesced": _REDUCE_SCATTERS,
    "alltoall": Operation("all_to_all", results_first=True, ragged=True),
    "alltoall_base": _ALL_TO_ALL,
    "all_to_all_single": _ALL_TO_ALL,
    "broadcast": Operation("broadcast", rooted=True),
    "reduce": Operation("reduce", rooted=True, reduces=True),
    "gather": Operation("gather", results_first=True, rooted=True, ragged=True),
    "scatter": Operation("scatter", results_first=True, rooted=True, ragged=True),
    "send": Operation(SEND),
    "recv": Operation(RECV, takes=False),
    "recv_anysource": Operation(RECV, takes=False),
    "barrier": Operation("barrier"),
    "monitored_barrier": Operation("monitored_barrier", blocks=True),
}
_HOOKED = {method.lstrip("_"): operation for method, operation in METHODS.items()}
_NAMED = {operation.name: operation for operation in METHODS.values()}
NAMES = frozenset(_NAMED)
POINT_TO_POINT = frozenset({SEND, RECV})


def named(name: str) -> Operation:
    """Return the operation that torch.distributed calls `name`, also if this table does not have it."""
    return _NAMED.get(name) or Operation(name, ragged=True)


def hooked(name: str) -> Operation:
    """Return the operation that torch's hooks call `name`."""
    return _HOOKED.get(name.lower()) or named(name.lower())
