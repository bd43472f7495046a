"""A file that holds one training state: it is replaced whole or not at all, checked for damage, and read safely.

The file is the output of `torch.save`, followed by its SHA-256. `torch.load(path, weights_only=True)` reads it, too.

- Why not safetensors: it stores tensors only. An optimizer's state is nested, has integer keys, and contains tuples and
  numbers, so it would need a second format. `weights_only=True` is as safe: it unpickles tensors, containers and plain
  values, and refuses to call anything else.
- Why a checksum: torch reads a tensor whose bytes were damaged on disk without any error.
- Why a second file: a job that is killed while it writes leaves half a file. So the state is written to a file beside
  the old one, flushed to disk and read back. Then the new file is renamed, which replaces the old one in one step.

Source: Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014): to replace a file, write another, fsync it,
rename it, fsync the directory. PyTorch's documentation of `torch.load`, `weights_only`.
"""

import hashlib
import io
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

_CHECKSUM_BYTES = 32


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or used. The message says which file, what is wrong and what to do."""


def write_checkpoint_file(path: Path, state: Mapping[str, Any]) -> None:
    """Write `state` to the file `path`. Its directory is made if it is missing.

    Args:
        path: the file. An existing file is replaced when the new one is complete.
        state: containers of tensors, on any device, and plain values.

    Raises:
        CheckpointError: it could not be written, or `state` has an object that could not be read back.
    """
    partial = path.with_name(f".{path.name}.partial")  # always the same name: crashes do not leave more and more files
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_to_disk(partial, state)
        _parse(partial, mmap=True)
        partial.replace(path)
        _flush_directory(path.parent)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} was not written: the state has an object that could not be read back, because it is not a tensor, "
            f"container or plain value. Convert it in state_dict(), NumPy's numbers with .item(). {_reason(error)}"
        ) from error
    except Exception as error:
        raise CheckpointError(
            f"{path} was not written; an older file with this name is unchanged. {type(error).__name__}: {error}"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def read_checkpoint_file(path: Path) -> bytearray:
    """The bytes of a checkpoint, complete and undamaged. `parse_checkpoint` turns them into the state.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: it cannot be read, is damaged, or is not a checkpoint.
    """
    try:
        data = bytearray(path.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no checkpoint {path}: {_describe_folder(path.parent)}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read. {type(error).__name__}: {error}") from error
    content, checksum = memoryview(data)[:-_CHECKSUM_BYTES], bytes(data[-_CHECKSUM_BYTES:])
    if hashlib.sha256(content).digest() != checksum:
        raise CheckpointError(
            f"{path} ({len(data)} bytes) is damaged, or is not a checkpoint: its last {_CHECKSUM_BYTES} bytes are "
            "not the checksum of the others. Resume from another checkpoint, or copy this one again."
        )
    return data


def parse_checkpoint(data: bytearray) -> dict[str, Any]:
    """The state in the bytes of a checkpoint, with all tensors on the CPU. It runs no code that the bytes name.

    Raises:
        CheckpointError: the bytes hold an object that is not a tensor, container or plain value.
    """
    try:
        return _parse(io.BytesIO(data), mmap=False)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            "this checkpoint has an object that is not a tensor, container or plain value, so write_checkpoint_file "
            f"did not write it, and loading it could run any code. Do not use it. {_reason(error)}"
        ) from error


def _parse(file: Path | io.BytesIO, *, mmap: bool) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    return state


def _write_to_disk(path: Path, state: Mapping[str, Any]) -> None:
    with path.open("w+b") as file:
        torch.save(dict(state), file)
        file.seek(0)
        checksum = hashlib.file_digest(file, "sha256").digest()
        file.seek(0, os.SEEK_END)
        file.write(checksum)
        file.flush()
        os.fsync(file.fileno())


def _flush_directory(path: Path) -> None:
    """Write the new name to disk, too: otherwise after a power cut there may be the old file, or none."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _describe_folder(directory: Path) -> str:
    if not directory.is_dir():
        return f"the directory {directory} does not exist"
    names = sorted(each.name for each in directory.iterdir() if each.is_file() and not each.name.startswith("."))
    return f"{directory} holds {', '.join(names[:10]) or 'no files'}"


def _reason(error: Exception) -> str:
    """The line of torch's message that names the object. Leaves out torch's advice to load it without safety."""
    lines = [line.strip() for line in str(error).splitlines() if "Unsupported" in line or "GLOBAL" in line]
    return lines[0] if lines else str(error)
