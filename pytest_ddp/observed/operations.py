"""The methods of a process group that communicate, and what their arguments mean.

torch renames them now and then: what two versions call differently has one name here.
"""

from dataclasses import dataclass, field

import torch.distributed as dist

from pytest_ddp.observed.entry import POINT_TO_POINT


@dataclass(frozen=True)
class Operation:
    """What a method of `ProcessGroup` does.

    Attributes:
        name: what torch.distributed calls it.
        results_first: whether its first argument is what it fills, and its second what it takes.
        takes: whether it takes tensors of this rank's; a receive does not.
        rooted: whether it has a root.
        reduces: whether it has a reduction.
        splits: whether its third and fourth arguments say how tensors are split.
        blocks: whether it waits for the other ranks itself, rather than giving a handle to wait for.
        message: whether it is a send or a receive.
    """

    name: str
    results_first: bool = False
    takes: bool = True
    rooted: bool = False
    reduces: bool = False
    splits: bool = False
    blocks: bool = False
    message: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", self.name in POINT_TO_POINT)


_ALL_GATHER = Operation("all_gather_into_tensor", results_first=True)
_ALL_GATHERS = Operation("all_gather_into_tensor_coalesced", results_first=True)
_REDUCE_SCATTER = Operation("reduce_scatter_tensor", results_first=True, reduces=True)
_REDUCE_SCATTERS = Operation("reduce_scatter_tensor_coalesced", results_first=True, reduces=True)
_ALL_TO_ALL = Operation("all_to_all_single", results_first=True, splits=True)
_GATHER = Operation("gather_into_tensor", results_first=True, rooted=True)
_EVERY_VERSIONS = {
    "allreduce": Operation("all_reduce", reduces=True),
    "allreduce_coalesced": Operation("all_reduce_coalesced", reduces=True),
    "allgather": Operation("all_gather", results_first=True),
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
    "alltoall": Operation("all_to_all", results_first=True),
    "alltoall_base": _ALL_TO_ALL,
    "all_to_all_single": _ALL_TO_ALL,
    "broadcast": Operation("broadcast", rooted=True),
    "reduce": Operation("reduce", rooted=True, reduces=True),
    "gather": Operation("gather", results_first=True, rooted=True),
    "scatter": Operation("scatter", results_first=True, rooted=True),
    "send": Operation("send"),
    "recv": Operation("recv", takes=False),
    "recv_anysource": Operation("recv", takes=False),
    "barrier": Operation("barrier"),
    "monitored_barrier": Operation("monitored_barrier", blocks=True),
}
OPERATIONS = {method: operation for method, operation in _EVERY_VERSIONS.items() if hasattr(dist.ProcessGroup, method)}
