"""A checkpoint's file is replaced whole or not at all, and reading returns what was written or raises."""

import errno
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reference.training.checkpoint_file import (
    CheckpointError,
    parse_checkpoint,
    read_checkpoint_file,
    write_checkpoint_file,
)

STATE: dict[str, Any] = {
    "tensors": {0: torch.arange(6.0).view(2, 3).t(), "bits": torch.tensor([1, 255], dtype=torch.uint8)},
    "plain": [1, 2.5, None, True, "text", (0.9, (1, 2))],
    "complex": torch.tensor([1j], dtype=torch.complex128),
}


def read(path: Path) -> dict[str, Any]:
    return parse_checkpoint(read_checkpoint_file(path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The path of a checkpoint that exists already."""
    path = tmp_path / "last.pt"
    write_checkpoint_file(path, {"version": "old"})
    return path


def fail(*_arguments: object, **_keywords: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_reading_returns_what_was_written(tmp_path: Path) -> None:
    write_checkpoint_file(tmp_path / "new" / "folder" / "last.pt", STATE)
    state = read(tmp_path / "new" / "folder" / "last.pt")
    assert state["plain"] == STATE["plain"]
    assert type(state["plain"][5]) is tuple
    for name, tensor in {**STATE["tensors"], "complex": STATE["complex"]}.items():
        assert torch.equal({**state["tensors"], "complex": state["complex"]}[name], tensor)


def test_torch_reads_it_too(file: Path) -> None:
    assert torch.load(file, weights_only=True) == {"version": "old"}


def test_no_other_file_is_left(file: Path) -> None:
    write_checkpoint_file(file, STATE)
    assert list(file.parent.iterdir()) == [file]


def test_a_damaged_byte_anywhere_is_noticed(file: Path) -> None:
    whole = file.read_bytes()
    for position in range(0, len(whole), 23):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        with pytest.raises(CheckpointError, match=r"last\.pt \(\d+ bytes\) is damaged, or is not a checkpoint"):
            read_checkpoint_file(file)


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, -33, -1])
def test_any_missing_part_is_noticed(file: Path, length: int) -> None:
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(CheckpointError, match="Resume from another checkpoint, or copy this one again"):
        read_checkpoint_file(file)


def test_the_error_for_a_missing_file_lists_the_files_of_the_folder(file: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint \S+first\.pt: \S+ holds last\.pt$"):
        read_checkpoint_file(file.with_name("first.pt"))
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no files$"):
        read_checkpoint_file(file)
    with pytest.raises(FileNotFoundError, match=r"the directory \S+/none does not exist"):
        read_checkpoint_file(tmp_path / "none" / "last.pt")


def test_a_folder_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be read\. IsADirectoryError"):
        read_checkpoint_file(tmp_path)


class Runs:
    """An object whose unpickling runs a function."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, ("made_by_a_checkpoint",)


def test_code_in_a_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"epoch": Runs()}, "hostile.pt")
    content = Path("hostile.pt").read_bytes()
    Path("hostile.pt").write_bytes(content + sha256(content).digest())
    with pytest.raises(CheckpointError, match=r"loading it could run any code\. Do not use it\. .*mkdir"):
        read(Path("hostile.pt"))
    assert not Path("made_by_a_checkpoint").exists()


# Writing that fails


def test_an_object_that_could_not_be_read_back_is_not_written(file: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"could not be read back, because .* Convert it .* with \.item\(\)\. .*numpy"
    ):
        write_checkpoint_file(file, {"lr": np.float64(0.1)})
    assert read(file) == {"version": "old"}


def test_an_object_that_cannot_be_pickled_is_not_written(file: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"not written; an older file with this name is unchanged\. \w+: .*lambda"
    ):
        write_checkpoint_file(file, {"schedule": lambda _: 0.1})
    assert read(file) == {"version": "old"}
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(*{"fsync": (os, "fsync"), "replace": (Path, "replace")}[name], fail)
        with pytest.raises(CheckpointError, match=r"OSError: \[Errno 28\] No space left on device"):
            write_checkpoint_file(file, STATE)
    assert read(file) == {"version": "old"}
    assert list(file.parent.iterdir()) == [file]


def test_the_file_is_renamed_after_all_bytes_are_on_disk(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[tuple[str, int]] = []
    fsync, replace = os.fsync, Path.replace

    def noting_fsync(number: int) -> None:
        happened.append(("fsync", os.fstat(number).st_ino))
        fsync(number)

    def noting_replace(source: Path, target: Path) -> Path:
        happened.append(("replace", source.stat().st_ino))
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(Path, "replace", noting_replace)
    write_checkpoint_file(file, STATE)
    new, directory = file.stat().st_ino, file.parent.stat().st_ino
    assert happened == [("fsync", new), ("replace", new), ("fsync", directory)]
