"""How data travels between controller and ranks: a JSON header and named tensors, never a pickle.

safetensors has no complex numbers: they travel as pairs, and are named beside the header.
"""

import struct
from collections.abc import Sequence
from json import dumps, loads  # by name: a submission may replace `json.dumps`
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

_LENGTH = struct.Struct(">I")


class MalformedError(ValueError):
    """Bytes from a rank are not what a rank of ours sends."""


def pack(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> bytes:
    """Return header and tensors as bytes; a dataclass in the header becomes an object of its fields."""
    halves = {name: torch.view_as_real(tensor) for name, tensor in tensors.items() if tensor.is_complex()}
    head = dumps([header, list(halves)], default=vars).encode()
    plain = {name: tensor.contiguous() for name, tensor in (tensors | halves).items()}
    return _LENGTH.pack(len(head)) + head + save(plain)


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the header and the tensors that `pack` was given.

    Raises:
        MalformedError: the bytes are something else.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        header, complex_ones = loads(data[_LENGTH.size : _LENGTH.size + length])
        tensors = load(data[_LENGTH.size + length :])
        tensors |= {name: torch.view_as_complex(tensors[name]) for name in complex_ones}
    except (struct.error, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        raise MalformedError(f"not an answer of a rank of ours: {error}") from error
    if not isinstance(header, dict):
        raise MalformedError(f"not an answer of a rank of ours: its header is {header!r}")
    return header, tensors


def join(parts: Sequence[bytes]) -> bytes:
    """Return several byte strings as one, such as the tasks of all ranks that one process hosts."""
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))


def split(data: bytes) -> list[bytes]:
    """Return the byte strings that `join` was given.

    Raises:
        MalformedError: the bytes are something else.
    """
    parts, at = list[bytes](), 0
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise MalformedError("not the answers of ranks of ours: they end early")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        parts.append(data[at - length : at])
    return parts
