"""The methods of a process group that communicate, and what their arguments mean.

torch renames them now and then: what two versions call differently has one name here.
"""

from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class Operation:
    """What a method of `ProcessGroup` does.

    Attributes:
        name: what torch.distributed calls it.
        results_first: whether its first argument is what it fills, and its second what it takes.
    """

    name: str
    results_first: bool = False


_ALL_GATHER = Operation("all_gather_into_tensor", results_first=True)
_ALL_GATHERS = Operation("all_gather_into_tensor_coalesced", results_first=True)
_REDUCE_SCATTER = Operation("reduce_scatter_tensor", results_first=True)
_REDUCE_SCATTERS = Operation("reduce_scatter_tensor_coalesced", results_first=True)
_ALL_TO_ALL = Operation("all_to_all_single", results_first=True)
_GATHER = Operation("gather_into_tensor", results_first=True)
_EVERY_VERSIONS = {
    "allreduce": Operation("all_reduce"),
    "allreduce_coalesced": Operation("all_reduce_coalesced"),
    "allgather": Operation("all_gather", results_first=True),
    "_allgather_base": _ALL_GATHER,
    "all_gather_single": _ALL_GATHER,
    "allgather_coalesced": Operation("all_gather_coalesced", results_first=True),
    "allgather_into_tensor_coalesced": _ALL_GATHERS,
    "all_gather_single_coalesced": _ALL_GATHERS,
    "gather_into_tensor": _GATHER,
    "gather_single": _GATHER,
    "reduce_scatter": Operation("reduce_scatter", results_first=True),
    "_reduce_scatter_base": _REDUCE_SCATTER,
    "reduce_scatter_single": _REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced": _REDUCE_SCATTERS,
    "reduce_scatter_single_coalesced": _REDUCE_SCATTERS,
    "alltoall": Operation("all_to_all", results_first=True),
    "alltoall_base": _ALL_TO_ALL,
    "all_to_all_single": _ALL_TO_ALL,
    "broadcast": Operation("broadcast"),
    "reduce": Operation("reduce"),
    "gather": Operation("gather", results_first=True),
    "scatter": Operation("scatter", results_first=True),
    "send": Operation("send"),
    "recv": Operation("recv"),
    "recv_anysource": Operation("recv"),
    "barrier": Operation("barrier"),
    "monitored_barrier": Operation("monitored_barrier"),
}
OPERATIONS = {method: operation for method, operation in _EVERY_VERSIONS.items() if hasattr(dist.ProcessGroup, method)}
NAMES = frozenset(operation.name for operation in _EVERY_VERSIONS.values())
