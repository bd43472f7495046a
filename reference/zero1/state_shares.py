"""Shares of one optimizer state, one on each rank: label a share, gather all of them, refuse one of another rank."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch.distributed as dist
from torch import Tensor


def label() -> dict[str, int]:
    """The rank and world size that a saved share belongs to."""
    return {"rank": dist.get_rank(), "world_size": dist.get_world_size()}


def gather(share: Mapping[Any, Any], to: int) -> dict[Any, Any] | None:
    """Copy the shares of all ranks to the CPU of rank `to`. Return their union there, and None on the other ranks.

    Call on every rank. The ranks send their shares one after the other, so rank `to` never holds more than one share
    beside the union. If several shares have the same key, the union has the value of rank `to`.
    """
    if dist.get_rank() != to:
        dist.send_object_list([_on_cpu(share)], dst=to)
        return None
    union: dict[Any, Any] = {}
    for source in range(dist.get_world_size()):
        if source != to:
            received: list[Any] = [None]
            dist.recv_object_list(received, src=source)
            union.update(received[0])
    return {**union, **_on_cpu(share)}


def refuse_misplaced(state_dict: Mapping[str, Any], elsewhere: set[int]) -> None:
    """Refuse a labelled share that does not belong to this rank.

    Args:
        state_dict: `state` by the number of the parameter; a share has its label under `shard`.
        elsewhere: numbers of the parameters that other ranks own.

    Raises:
        ValueError: if the share belongs to another rank or world size, or holds the state of a parameter `elsewhere`.
    """
    if (shard := state_dict.get("shard")) is None:
        return
    here = label()
    given = f"rank {here['rank']} of {here['world_size']} was given"
    advice = "To load elsewhere, call consolidate_state_dict(to=0) on every rank and save state_dict() on rank 0."
    if shard != here:
        raise ValueError(
            f"{given} the share of rank {shard['rank']} of {shard['world_size']}: "
            f"a share loads on its own rank of as many. {advice}"
        )
    if foreign := elsewhere.intersection(state_dict["state"]):
        raise ValueError(
            f"{given} the state of parameters {sorted(foreign)}, which other ranks own here: "
            f"a share loads where the same groups were given in the same order. {advice}"
        )


def _on_cpu(value: Any) -> Any:
    """A copy with all tensors on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _on_cpu(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_on_cpu(each) for each in value]
    return deepcopy(value)
