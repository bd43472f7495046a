"""A cgroup for one sandbox, where this machine has one that can be written: limits its memory and its processes."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_PROCESSES = 4096
_PART_OF_MEMORY = 0.75


@contextmanager
def cgroups(root: Path = ROOT, belongs_to: str | None = None) -> Iterator[tuple[str, ...]]:
    """Give the folders of new cgroups that limit memory and processes; none where they cannot be made.

    Version 2 is tried first, then version 1. The new group lies beside the judge's own in version 2, where a group
    with processes may have no limited children, and below it in version 1.
    """
    belongs_to = Path("/proc/self/cgroup").read_text(encoding="ascii") if belongs_to is None else belongs_to
    with ExitStack() as held:
        yield tuple(_made(root, belongs_to, held))


def _made(root: Path, belongs_to: str, held: ExitStack) -> list[str]:
    name = f"pytest-ddp-{os.getpid()}-{os.urandom(4).hex()}"
    memory, processes = str(int(_physical_memory() * _PART_OF_MEMORY)), str(_PROCESSES)
    of = {names: path for _, names, path in (line.split(":", 2) for line in belongs_to.splitlines())}
    if "" in of and (root / "cgroup.controllers").exists():
        beside = (root / of[""].lstrip("/")).parent if of[""] != "/" else root
        return _group(beside / name, {"memory.max": memory, "pids.max": processes}, held)
    wanted = {"memory": {"memory.limit_in_bytes": memory}, "pids": {"pids.max": processes}}
    found = []
    for controller, limits in wanted.items():
        path = next((path for names, path in of.items() if controller in names.split(",")), None)
        if path is not None:
            found += _group(root / controller / path.lstrip("/") / name, limits, held)
    return found


def _group(folder: Path, limits: dict[str, str], held: ExitStack) -> list[str]:
    """Make a group with limits; return its folder, or nothing if that is not allowed."""
    try:
        folder.mkdir()
    except OSError:
        return []
    held.callback(_remove, folder)
    try:
        for name, value in limits.items():
            (folder / name).write_text(value, encoding="ascii")
    except OSError:
        return []
    return [str(folder)]


def _remove(folder: Path) -> None:
    with suppress(OSError):  # a process in it may not have ended yet
        folder.rmdir()


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
