"""What each operation of a simulated group computes: which tensor is written into which, for all ranks at once.

Each function gets the calls of all ranks in the order of the group, and returns for each rank pairs (result, value):
`value` is copied into the tensor `result` of this rank when the operation lands there. Values never share memory with
tensors of ranks, because ranks may change theirs before the results have landed everywhere.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch

from pytest_ddp.observed.recording.call import Call
from pytest_ddp.simulated.reductions import Reduction, reduced

Writes = list[tuple[torch.Tensor, torch.Tensor]]
Compute = Callable[[Sequence[Call], Reduction], list[Writes]]


def values(calls: Sequence[Call], order: Reduction) -> list[Writes]:
    """Return what the operation that these calls make writes on each rank."""
    return _COMPUTE[calls[0].operation.name](calls, order)


def message(sent: Call, received: Call) -> Writes:
    """Return what a message writes on the receiver."""
    return [
        (target, source.clone().view(target.shape))
        for target, source in zip(received.outputs, sent.inputs, strict=True)
    ]


def _all_reduce(calls: Sequence[Call], order: Reduction) -> list[Writes]:
    totals = _totals(calls, order)
    return [list(zip(call.outputs, totals, strict=True)) for call in calls]


def _totals(calls: Sequence[Call], order: Reduction) -> list[torch.Tensor]:
    """Return the reduction of the first tensors of all ranks, of the second ones, ..."""
    of_ranks, operation = [_multiplied(call) for call in calls], calls[0].reduction
    return [reduced(tensors, operation, order) for tensors in zip(*of_ranks, strict=True)]


def _multiplied(call: Call) -> list[torch.Tensor]:
    """Return the tensors of a rank, multiplied with the factor of PREMUL_SUM if it has one."""
    factor = call.factor
    return call.inputs if factor is None else [(one * factor).to(one.dtype) for one in call.inputs]


def _broadcast(calls: Sequence[Call], _order: Reduction) -> list[Writes]:
    root = _root(calls)
    sources = [tensor.clone() for tensor in calls[root].inputs]
    return [[] if rank == root else list(zip(call.outputs, sources, strict=True)) for rank, call in enumerate(calls)]


def _reduce(calls: Sequence[Call], order: Reduction) -> list[Writes]:
    root = _root(calls)
    return [writes if rank == root else [] for rank, writes in enumerate(_all_reduce(calls, order))]


def _all_gather(calls: Sequence[Call], _order: Reduction) -> list[Writes]:
    sources = [tensor.clone() for call in calls for tensor in call.inputs]
    return [list(zip(call.outputs, sources, strict=True)) for call in calls]


def _all_gather_into_tensor(calls: Sequence[Call], _order: Reduction) -> list[Writes]:
    gathered = [torch.cat([one.reshape(-1) for one in parts]) for parts in zip(*[c.inputs for c in calls], strict=True)]
    return [
        [(target, whole.view(target.shape)) for target, whole in zip(call.outputs, gathered, strict=True)]
        for call in calls
    ]


def _gather(calls: Sequence[Call], _order: Reduction) -> list[Writes]:
    sources = [call.inputs[0].clone() for call in calls]
    root = calls[_root(calls)]
    return [list(zip(call.outputs, sources, strict=True)) if call is root else [] for call in calls]


def _gather_into_tensor(calls: Sequence[Call], _order: Reduction) -> list[Writes]:
    root = calls[_root(calls)]
    whole = torch.cat([call.inputs[0].reshape(-1) for call in calls])
    return [[(root.outputs[0], whole.view(root.outputs[0].shape))] if call is root else [] for call in calls]


def _scatter(calls: Sequence[Call], _order: Reduction) -> list[Writes]:
    sources = [one.clone() for one in calls[_root(calls)].inputs]
    return [[(call.outputs[0], source)] for call, source in zip(calls, sources, strict=True)]


def _reduce_scatter(calls: Sequence[Call], order: Reduction) -> list[Writes]:
    totals = _totals(calls, order)
    return [[(call.outputs[0], total)] for call, total in zip(calls, totals, strict=True)]


def _reduce_scatter_tensor(calls: Sequence[Call], order: Reduction) -> list[Writes]:
    totals = _totals(calls, order)
    parts = [total.reshape(-1).tensor_split(len(calls)) for total in totals]
    return [
        [(target, part[rank].view(target.shape)) for target, part in zip(call.outputs, parts, strict=True)]
        for rank, call in enumerate(calls)
    ]


def _all_to_all(calls: Sequence[Call], _order: Reduction) -> list[Writes]:
    return [
        [(target, calls[peer].inputs[rank].clone()) for peer, target in enumerate(call.outputs)]
        for rank, call in enumerate(calls)
    ]


def _all_to_all_single(calls: Sequence[Call], _order: Reduction) -> list[Writes]:
    given = [_pieces(call.inputs[0].clone(), call.given[3], len(calls)) for call in calls]
    wanted = [_pieces(call.outputs[0], call.given[2], len(calls)) for call in calls]
    return [
        [(target, given[peer][rank]) for peer, target in enumerate(targets) if target.numel()]
        for rank, targets in enumerate(wanted)
    ]


def _pieces(tensor: torch.Tensor, sizes: Sequence[int], count: int) -> Sequence[torch.Tensor]:
    return tensor.tensor_split(list(accumulate(sizes))[:-1]) if sizes else tensor.tensor_split(count)


def _barrier(calls: Sequence[Call], _order: Reduction) -> list[Writes]:
    return [[] for _ in calls]


def _root(calls: Sequence[Call]) -> int:
    root = calls[0].root
    return 0 if root is None else calls[0].ranks.index(root)


_COMPUTE: dict[str, Compute] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce,
    "all_gather": _all_gather,
    "all_gather_coalesced": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_gather_into_tensor_coalesced": _all_gather_into_tensor,
    "gather": _gather,
    "gather_into_tensor": _gather_into_tensor,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter_tensor_coalesced": _reduce_scatter_tensor,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "scatter": _scatter,
    "barrier": _barrier,
    "monitored_barrier": _barrier,
}
