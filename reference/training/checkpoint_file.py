"""One file that holds one training state: replaced whole or not at all, read without running code, checked for damage.

The file is what `torch.save` writes, followed by its SHA-256, so `torch.load(path, weights_only=True)` opens it too.

- Why not safetensors: it holds tensors only. An optimizer's state is nested, numbered by integers and mixed with
  tuples and numbers, which would need a second format beside it. `weights_only=True` is as safe here: it unpickles
  tensors, containers and plain values, and refuses to call anything else.
- Why a checksum: torch reads a tensor whose bytes were damaged on disk without a word, and trains on.
- Why aside first: a job that is killed while it writes leaves half a file. The name moves, in one step, to the new file
  only when that is on disk and has been read back; until then the old one stands.

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
    """A checkpoint cannot be written or used; the message says which file, what is wrong and what to do."""


def write_checkpoint_file(path: Path, state: Mapping[str, Any]) -> None:
    """Put `state` into the file `path`, whose directory is made if it is missing.

    Args:
        path: the file; if there is one, it stays as it is until the new one is complete.
        state: containers of tensors, on any device, and plain values.

    Raises:
        CheckpointError: it could not be written, or holds an object that could not be read back.
    """
    partial = path.with_name(f".{path.name}.partial")  # the same for every try, so that crashes do not pile up files
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_to_disk(partial, state)
        _parse(partial, mmap=True)
        partial.replace(path)
        _flush_directory(path.parent)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} was not written: the state holds more than tensors, containers and plain values, and could not be "
            f"read back. Convert it in state_dict(), NumPy's numbers with .item(). {_first_line(error)}"
        ) from error
    except Exception as error:
        raise CheckpointError(
            f"{path} was not written; what was there before still is. {type(error).__name__}: {error}"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def read_checkpoint_file(path: Path) -> bytearray:
    """The bytes of a checkpoint, complete and undamaged; `parse_checkpoint` makes the state of them.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: it cannot be read, or is not what was written.
    """
    try:
        data = bytearray(path.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no checkpoint {path}: {_what_there_is(path.parent)}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read. {type(error).__name__}: {error}") from error
    content, checksum = memoryview(data)[:-_CHECKSUM_BYTES], bytes(data[-_CHECKSUM_BYTES:])
    if hashlib.sha256(content).digest() != checksum:
        raise CheckpointError(
            f"{path} ({len(data)} bytes) is damaged, or no checkpoint: its last {_CHECKSUM_BYTES} bytes are not the "
            "checksum of the others. Resume from another checkpoint, or copy this one again."
        )
    return data


def parse_checkpoint(data: bytearray) -> dict[str, Any]:
    """The state in the bytes of a checkpoint, all tensors on the CPU. Runs no code that the bytes name.

    Raises:
        CheckpointError: they hold something else than tensors, containers and plain values.
    """
    try:
        return _parse(io.BytesIO(data), mmap=False)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            "this checkpoint holds more than tensors, containers and plain values, so write_checkpoint_file did not "
            f"write it, and loading it could run anything. Do not use it. {_first_line(error)}"
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
    """Have the new name on disk too: without it, a power cut can bring the old file back, or none."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _what_there_is(directory: Path) -> str:
    if not directory.is_dir():
        return f"the directory {directory} does not exist"
    names = sorted(each.name for each in directory.iterdir() if each.is_file() and not each.name.startswith("."))
    return f"{directory} holds {', '.join(names[:10]) or 'no files'}"


def _first_line(error: Exception) -> str:
    """What torch could not load: its advice, to load it without safety, is not ours."""
    lines = [line.strip() for line in str(error).splitlines() if "Unsupported" in line or "GLOBAL" in line]
    return lines[0] if lines else str(error)
