"""How data travels between controller and ranks: a JSON header and named tensors, never a pickle.

The header says name, dtype and shape of each tensor; their bytes follow, those of wide numbers first, so that each
tensor begins at a multiple of its numbers' size: torch reads complex numbers from no other place. NumPy has no
bfloat16, so bytes are taken as bytes.
"""

import struct
from collections.abc import Sequence
from json import dumps, loads  # by name: a submission may replace `json.dumps`
from math import prod
from typing import Any

import torch

# By name, as above.
from torch import cat, empty, frombuffer, view_as_complex, view_as_real

_LENGTH = struct.Struct(">I")
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_PARTS = {torch.complex128: torch.float64, torch.complex64: torch.float32, torch.complex32: torch.float16}
_reshaped, _viewed, _contiguous = torch.Tensor.reshape, torch.Tensor.view, torch.Tensor.contiguous


class MalformedError(ValueError):
    """Bytes from a rank are not what a rank of ours sends."""


def pack(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> bytes:
    """Return header and tensors as bytes; a dataclass in the header becomes an object of its fields."""
    layout = [(name, _NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()]
    head = dumps([header, layout], default=vars).encode()
    return _LENGTH.pack(len(head)) + head + _joined(list(tensors.values()))


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the header and the tensors that `pack` was given.

    Raises:
        MalformedError: the bytes are something else.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        header, layout = loads(data[_LENGTH.size : _LENGTH.size + length])
        tensors = _split(bytearray(memoryview(data)[_LENGTH.size + length :]), layout)
    except (struct.error, ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
        raise MalformedError(f"not an answer of a rank of ours: {error}") from error
    if not isinstance(header, dict):
        raise MalformedError(f"not an answer of a rank of ours: its header is {header!r}")
    return header, tensors


def _joined(tensors: Sequence[torch.Tensor]) -> bytes:
    """Return the bytes of all tensors, those of wide numbers first."""
    wide_first = sorted(tensors, key=_width)
    plain = [view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor for tensor in wide_first]
    raw = [_viewed(_reshaped(_contiguous(tensor), (-1,)), torch.uint8) for tensor in plain]
    joined: bytes = cat(raw).numpy().tobytes() if raw else b""
    return joined


def _width(tensor: torch.Tensor) -> int:
    return -tensor.element_size()


def _split(data: bytearray, layout: Any) -> dict[str, torch.Tensor]:
    """Return the tensors that these bytes hold, by name, in the order of the layout."""
    found = {_text(name): (_DTYPES[dtype], tuple(map(_size, shape))) for name, dtype, shape in layout}
    tensors, at = dict.fromkeys(found, empty(0)), 0
    for name, (dtype, shape) in sorted(found.items(), key=lambda item: -item[1][0].itemsize):
        count, part = prod(shape), _PARTS.get(dtype, dtype)
        plain = _numbers(data, at, part, count if part is dtype else 2 * count)
        at += plain.nbytes
        whole = plain if part is dtype else view_as_complex(_reshaped(plain, (-1, 2)))
        tensors[name] = _reshaped(whole, shape)
    if at != len(data):
        raise ValueError(f"it has {len(data)} bytes of tensors, and says that they are {at}")
    return tensors


def _numbers(data: bytearray, at: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    return frombuffer(data, dtype=dtype, count=count, offset=at) if count else empty(0, dtype=dtype)


def _text(name: Any) -> str:
    if type(name) is not str:
        raise ValueError(f"{name!r} is no name")
    return name


def _size(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} is no size")
    return number


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
