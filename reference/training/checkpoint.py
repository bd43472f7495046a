"""Checkpoints of data-parallel training: written by rank 0, loaded by every rank, on as many ranks or on others.

All ranks hold equal parameters, so rank 0's are everybody's. Not so the optimizer's state when it is sharded, nor the
random generators, which draw other dropout masks on every rank: these are gathered first, and every rank has to call.
When `save_checkpoint` returns, on any rank, the file is complete; if it could not be written, every rank raises.

Rank 0 also reads, and sends the others what it has read: nodes need no file system in common, and a file that is
missing or damaged is the same failure on every rank, where one rank that fails alone would leave the others waiting.

What is saved is independent of wrappers: names without their `module.`, the optimizer's state as the unsharded
optimizer would have it. It loads into the bare module, into any wrapper, with any number of ranks. Only the generators'
states are tied to the number of ranks: on another, they are left as they are.

Source: PyTorch's tutorial "Getting Started with Distributed Data Parallel", "Save and Load Checkpoints";
`torch.distributed.optim.ZeroRedundancyOptimizer.consolidate_state_dict`.
"""

from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist
from torch import nn

from reference.training import rng_state
from reference.training.checkpoint_file import (
    CheckpointError,
    parse_checkpoint,
    read_checkpoint_file,
    write_checkpoint_file,
)
from reference.training.rank_zero import by_rank_0, rank, send_bytes, world_size

WRAPPER = "module."


class Stateful(Protocol):
    """What can be saved: an optimizer, a GradScaler, a learning-rate scheduler, a place in the data."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that later behaviour depends on."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """Go on from there."""


def save_checkpoint(
    path: str | Path,
    model: nn.Module,
    optimizer: Stateful,
    scaler: Stateful | None,
    epoch: int,
    **others: Stateful,
) -> None:
    """Save a training's state to one file, from rank 0. Call on every rank, between two steps.

    Args:
        path: the file. If there is one, it is replaced when the new one is complete, and not before.
        model: bare or wrapped; if it has `full_state_dict`, its parameters are put together first, and if it has
            `full_optimizer_state_dict`, the optimizer's state too.
        optimizer: if it has `consolidate_state_dict`, its shares are gathered on rank 0 first.
        scaler: the GradScaler, or None.
        epoch: what `load_checkpoint` shall return.
        **others: what else has to go on where it was (a scheduler), equal on all ranks.

    Raises:
        CheckpointError: on every rank, if rank 0 could not write it; what was there before is there still.
    """
    state = {
        "epoch": epoch,
        "model": _whole_model(model),
        "optimizer": _whole_optimizer(optimizer, model),
        "scaler": None if scaler is None else scaler.state_dict(),
        "others": {name: other.state_dict() for name, other in others.items()},
        "random": _gather(rng_state.capture()),
    }
    by_rank_0(lambda: write_checkpoint_file(Path(path), state))


def load_checkpoint(
    path: str | Path,
    model: nn.Module,
    optimizer: Stateful | None,
    scaler: Stateful | None,
    **others: Stateful,
) -> int:
    """Load what `save_checkpoint` saved, whatever the wrappers and the number of ranks were. Call on every rank.

    Args:
        path: the file; only rank 0 needs to see it.
        model: bare or wrapped.
        optimizer: sharded or not; None (for evaluation, say) leaves that part in the file, as for those below.
        scaler: the GradScaler.
        **others: by the names under which they were saved.

    Returns:
        The epoch that was saved.

    Raises:
        FileNotFoundError: on every rank, if rank 0 sees no such file.
        CheckpointError: on every rank, if it is damaged, lacks a part that is asked for, or does not fit.
    """
    state = parse_checkpoint(_read_on_rank_0(Path(path)))
    parts = {"scaler": state["scaler"], **state["others"]}
    wanted = {"scaler": scaler, **others} if scaler is not None else others
    if missing := [name for name in wanted if parts.get(name) is None]:
        raise CheckpointError(
            f"{path} was saved without {', '.join(missing)}: load it without, and begin with new ones, or resume from "
            f"a checkpoint that has them. It has {', '.join(name for name, part in parts.items() if part is not None)}"
        )
    try:
        _load_model(model, state["model"])
        if optimizer is not None:
            _load_optimizer(optimizer, model, state["optimizer"])
        for name, other in wanted.items():
            other.load_state_dict(parts[name])
    except (ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(f"{path} does not fit what it is loaded into. {type(error).__name__}: {error}") from error
    if len(state["random"]) == world_size():
        rng_state.restore(state["random"][rank()])
    epoch: int = state["epoch"]
    return epoch


def _read_on_rank_0(path: Path) -> bytearray:
    """The file's bytes, on every rank."""
    data = bytearray()
    by_rank_0(lambda: data.extend(read_checkpoint_file(path)))
    return send_bytes(data)


# What is saved


def _whole_model(model: Any) -> dict[str, Any]:
    """The bare module's state, by its own names."""
    if hasattr(model, "full_state_dict"):
        full: dict[str, Any] = model.full_state_dict()
        return full
    state = model.state_dict()
    depth = len(_wrappers(state))
    return {name[depth:]: value for name, value in state.items()}


def _load_model(model: Any, state: dict[str, Any]) -> None:
    if hasattr(model, "load_full_state_dict"):
        model.load_full_state_dict(state)
    else:
        prefix = _wrappers(model.state_dict())
        model.load_state_dict({prefix + name: value for name, value in state.items()})


def _wrappers(state: dict[str, Any]) -> str:
    """What stands before every name: one `module.` for each wrapper, for most wrappers."""
    prefix = ""
    while state and all(name.startswith(prefix + WRAPPER) for name in state):
        prefix += WRAPPER
    return prefix


def _whole_optimizer(optimizer: Any, model: Any) -> dict[str, Any] | None:
    """The unsharded optimizer's state, on rank 0 at least."""
    if hasattr(optimizer, "consolidate_state_dict"):
        optimizer.consolidate_state_dict(to=0)
        if rank() != 0:
            return None
    if hasattr(model, "full_optimizer_state_dict"):
        full: dict[str, Any] = model.full_optimizer_state_dict(optimizer)
        return full
    state: dict[str, Any] = optimizer.state_dict()  # on every rank: it may be a collective
    return state


def _load_optimizer(optimizer: Stateful, model: Any, state: dict[str, Any]) -> None:
    if hasattr(model, "load_full_optimizer_state_dict"):
        model.load_full_optimizer_state_dict(optimizer, state)
    else:
        optimizer.load_state_dict(state)


def _gather(value: object) -> list[Any]:
    """Every rank's value, in the order of ranks, on rank 0."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * world_size()
    dist.gather_object(value, values if rank() == 0 else None, dst=0)
    return values
