"""Unpacks an archive that somebody else made: nothing of it lands outside its folder, and it has limits.

A process of its own unpacks it, which may use little memory and time: an archive can fill the memory before anything is
known of the files in it.
"""

import errno
import os
import resource
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from conformance.batch.folders import hold_depth, is_left_out
from conformance.submissions.location import only_folder
from pytest_ddp.errors import UsageError
from pytest_ddp.pool.launcher import interpreter_command

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
MOST_FILES = 10_000
MOST_BYTES = 2**28
_MEMORY_BYTES = 2**29
_SECONDS = 60  # of CPU time
FULL = {errno.ENOSPC, errno.EDQUOT}  # a disk is full
_FULL = 3  # the exit code that says so


def is_archive(name: str) -> bool:
    """Whether a file of this name is an archive."""
    return name.lower().endswith(ARCHIVES)


def unpacked(archive: Path, folder: Path) -> Path:
    """Unpack an archive in a folder, without what version control and package managers keep; return the folder.

    Raises:
        UsageError: it is no archive, it is too large, or an entry is no plain file or lies outside.
        OSError: the disk is full.
    """
    if not archive.stat().st_size:
        raise UsageError(f"{archive.name} cannot be unpacked: it is empty")
    call = "from conformance.batch.archives import main; main(*sys.argv[1:])"
    command = [*interpreter_command(call), str(archive), str(folder)]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if ended.returncode == _FULL:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    if ended.returncode:
        broken = f"{archive.name} cannot be unpacked: it takes over {_SECONDS} s, or breaks Python"
        raise UsageError(ended.stdout.decode() or broken)
    return only_folder(folder)


def main(archive: str, folder: str) -> None:
    """Unpack an archive in this process, which gets limits; if that is refused, print why and exit."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    try:
        _unpack(Path(archive), Path(folder))
    except UsageError as error:
        said = str(error)
    except OSError as error:
        if error.errno in FULL:
            sys.exit(_FULL)
        said = f"{Path(archive).name} cannot be unpacked: {error}"
    except Exception as error:  # noqa: BLE001  tarfile and zipfile raise whatever a damaged archive leads to
        said = f"{Path(archive).name} cannot be unpacked: {str(error) or type(error).__name__}"
    else:
        return
    sys.stdout.buffer.write(said.encode(errors="backslashreplace"))
    sys.exit(1)


def _unpack(archive: Path, folder: Path) -> None:
    (_unpack_zip if _is_zip(archive) else _unpack_tar)(archive, folder)


def _is_zip(archive: Path) -> bool:
    """Whether it is a zip archive: by its content, since names are given by hand; by its name if it is broken."""
    return zipfile.is_zipfile(archive) or (archive.suffix.lower() == ".zip" and not tarfile.is_tarfile(archive))


def _unpack_zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        members = [one for one in opened.infolist() if not is_left_out(Path(one.filename))]
        hold_limits(archive.name, [Path(one.filename) for one in members], sum(one.file_size for one in members))
        for one in members:
            _hold_inside(archive, folder, one.filename)
            if stat.S_ISLNK(one.external_attr >> 16):
                raise UsageError(f"{archive.name} holds a link, {one.filename!r}: it is not unpacked")
        opened.extractall(folder, members)  # noqa: S202  each name and the sizes were looked at


def _unpack_tar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as opened:
        members, size = list[tarfile.TarInfo](), 0
        for one in opened:
            if is_left_out(Path(one.name)):
                continue
            members.append(one)
            size += one.size
            if size > MOST_BYTES or len(members) > 2 * MOST_FILES:
                raise _too_large(archive.name)
            _hold_inside(archive, folder, one.name)
            if not (one.isfile() or one.isdir()):
                raise UsageError(f"{archive.name} holds {one.name!r}, which is no plain file: it is not unpacked")
        hold_limits(archive.name, [Path(one.name) for one in members], size)
        opened.extractall(folder, members, filter="data")


def hold_limits(name: str, paths: Iterable[Path], size: int, times: int = 1) -> None:
    """Raise UsageError if a submission has too many files and folders, or too many bytes.

    Args:
        name: of the submission.
        paths: of its files at least; the folders in which they are count, too.
        size: the bytes of all files.
        times: multiplies both limits.
    """
    everything = {one for path in paths for one in (path, *path.parents)} - {Path()}
    if len(everything) > times * MOST_FILES or size > times * MOST_BYTES:
        raise _too_large(name, times)


def _too_large(name: str, times: int = 1) -> UsageError:
    most = f"{times * MOST_FILES} files and folders or {times * MOST_BYTES >> 20} MiB"
    return UsageError(f"{name} has more than {most}")


def _hold_inside(archive: Path, folder: Path, name: str) -> None:
    hold_depth(archive.name, Path(name))
    if "\\" in name or not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"{archive.name} holds {name!r}, which lies outside of its folder or has a backslash: it is not unpacked"
        )
