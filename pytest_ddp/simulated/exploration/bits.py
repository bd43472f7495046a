"""The bits of what ranks return, so that two runs can be compared."""

import hashlib
from typing import Any

import torch


def digest(value: Any) -> str:
    """Return equal texts for equal values: tensors bit by bit, containers by their elements, others by their repr."""
    text = hashlib.sha256()
    _add(text, value)
    return text.hexdigest()


def _add(text: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        tensor = value.detach().contiguous()
        text.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        text.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        _add(text, list(value.items()))
    elif isinstance(value, list | tuple):
        text.update(f"{type(value).__name__}{len(value)}".encode())
        for each in value:
            _add(text, each)
    else:
        text.update(repr(value).encode())
