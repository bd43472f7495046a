"""Checkpoints of data-parallel training: rank 0 writes one file, and any number of ranks can load it.

**Saving.** All ranks have equal parameters, so rank 0's are enough. But a sharded optimizer has a different state on
every rank, and so have the random generators, because ranks draw different dropout masks. These states are gathered
first, so every rank has to call `save_checkpoint`. When it returns on any rank, the file is complete. If the file could
not be written, every rank raises.

**Loading.** Rank 0 reads the file and sends its bytes to the others. So nodes need no common file system, and a missing
or damaged file raises the same error on every rank. If one rank alone raised, the others would wait for it.

**Content.** It does not depend on wrappers: names have no `module.` in front, and the optimizer's state is the one that
the unsharded optimizer would have. So it can be loaded into the bare module and into any wrapper, on any number of
ranks. Only the states of random generators need the same number of ranks; on another number they are not restored.

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
    """An object that can be saved: an optimizer, a GradScaler, a learning-rate scheduler, a progress."""

    def state_dict(self) -> dict[str, Any]:
        """The state, as containers of tensors and plain values."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """Take over a state."""


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
        path: the file. An existing file is replaced when the new one is complete.
        model: bare or wrapped. Its `full_state_dict` and `full_optimizer_state_dict` are used if it has them.
        optimizer: if it has `consolidate_state_dict`, its shares are gathered on rank 0 first.
        scaler: the GradScaler, or None.
        epoch: the number that `load_checkpoint` returns.
        **others: other objects to save by name (a scheduler), equal on all ranks.

    Raises:
        CheckpointError: on every rank, if rank 0 could not write the file. An older file is unchanged.
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
    """Load a file of `save_checkpoint`, saved with any wrappers on any number of ranks. Call on every rank.

    Args:
        path: the file; only rank 0 reads it.
        model: bare or wrapped.
        optimizer: sharded or not; None to leave it out, for example to evaluate.
        scaler: the GradScaler; None to leave it out.
        **others: other objects, by the names with which they were saved.

    Returns:
        The epoch that was saved.

    Raises:
        FileNotFoundError: on every rank, if rank 0 finds no such file.
        CheckpointError: on every rank, if the file is damaged, lacks an object that is given here, or does not fit it.
    """
    state = parse_checkpoint(_read_on_rank_0(Path(path)))
    parts = {"scaler": state["scaler"], **state["others"]}
    wanted = {"scaler": scaler, **others} if scaler is not None else others
    if missing := [name for name in wanted if parts.get(name) is None]:
        raise CheckpointError(
            f"{path} was saved without {', '.join(missing)}. Leave them out of load_checkpoint, or load a checkpoint "
            f"that has them. This one has {', '.join(name for name, part in parts.items() if part is not None)}"
        )
    try:
        _load_model(model, state["model"])
        if optimizer is not None:
            _load_optimizer(optimizer, model, state["optimizer"])
        for name, other in wanted.items():
            other.load_state_dict(parts[name])
    except (ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(f"{path} does not fit the objects to load. {type(error).__name__}: {error}") from error
    if len(state["random"]) == world_size():
        rng_state.restore(state["random"][rank()])
    epoch: int = state["epoch"]
    return epoch


def _read_on_rank_0(path: Path) -> bytearray:
    """The file's bytes, on every rank."""
    data = bytearray()
    by_rank_0(lambda: data.extend(read_checkpoint_file(path)))
    return send_bytes(data)


# State dicts that do not depend on wrappers


def _whole_model(model: Any) -> dict[str, Any]:
    """The state dict of the bare module."""
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
    """The common beginning of all names: one `module.` for each wrapper that adds it."""
    prefix = ""
    while state and all(name.startswith(prefix + WRAPPER) for name in state):
        prefix += WRAPPER
    return prefix


def _whole_optimizer(optimizer: Any, model: Any) -> dict[str, Any] | None:
    """The state dict of the unsharded optimizer; on the other ranks it may be None."""
    if hasattr(optimizer, "consolidate_state_dict"):
        optimizer.consolidate_state_dict(to=0)
        if rank() != 0:
            return None
    if hasattr(model, "full_optimizer_state_dict"):
        full: dict[str, Any] = model.full_optimizer_state_dict(optimizer)
        return full
    state: dict[str, Any] = optimizer.state_dict()  # called on every rank, because it may be a collective
    return state


def _load_optimizer(optimizer: Stateful, model: Any, state: dict[str, Any]) -> None:
    if hasattr(model, "load_full_optimizer_state_dict"):
        model.load_full_optimizer_state_dict(optimizer, state)
    else:
        optimizer.load_state_dict(state)


def _gather(value: object) -> list[Any]:
    """The values of all ranks, by rank, on rank 0; unused elsewhere."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * world_size()
    dist.gather_object(value, values if rank() == 0 else None, dst=0)
    return values
