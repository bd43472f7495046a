"""A right checkpoint."""

from pathlib import Path

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, scaler, epoch):
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": epoch,
        "ranks": dist.get_world_size(),
    }
    if scaler:
        state["scaler"] = scaler.state_dict()
    if dist.get_rank() == 0:
        new = f"{path}.{dist.get_rank()}"
        torch.save(state, new)
        Path(new).replace(path)
    dist.barrier()


def load_checkpoint(path, model, optimizer, scaler):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    if scaler:
        scaler.load_state_dict(state["scaler"])
    return state["epoch"]
