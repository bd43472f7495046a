"""How data travels between controller and ranks: a JSON header and named tensors, never a pickle."""

import json
import struct
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

_LENGTH = struct.Struct(">I")


class MalformedError(ValueError):
    """Bytes from a rank are not what a rank of ours sends."""


def pack(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> bytes:
    """Return header and tensors as bytes."""
    head = json.dumps(header).encode()
    return _LENGTH.pack(len(head)) + head + save({name: tensor.contiguous() for name, tensor in tensors.items()})


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the header and the tensors that `pack` was given.

    Raises:
        MalformedError: the bytes are something else.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        header = json.loads(data[_LENGTH.size : _LENGTH.size + length])
        tensors = load(data[_LENGTH.size + length :])
    except (struct.error, ValueError, SafetensorError) as error:
        raise MalformedError(f"not an answer of a rank of ours: {error}") from error
    if not isinstance(header, dict):
        raise MalformedError(f"not an answer of a rank of ours: its header is {header!r}")
    return header, tensors
