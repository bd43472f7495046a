"""A cgroup for one sandbox, where this machine has one that can be written: limits its memory and its processes."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PROCESSES = 2048  # and threads, of all ranks together: each rank has about ten
_PART_OF_MEMORY = 0.75
_NAME = "pytest-ddp"
_KILLS = ("memory.events", "memory.oom_control")  # of version 2 and of version 1: both have a line "oom_kill N"


@contextmanager
def cgroups(root: Path = ROOT, belongs_to: str | None = None) -> Iterator[dict[str, str]]:
    """Give the folders of new cgroups: for "memory" and for "pids", as far as they can be made.

    In version 2, the new group lies beside the judge's own one: a group with processes may have no limited children. In
    version 1, it lies below.

    Args:
        root: where cgroups are mounted.
        belongs_to: the text of /proc/self/cgroup; a system may have no such file.
    """
    if belongs_to is None:
        own = Path("/proc/self/cgroup")
        belongs_to = own.read_text(encoding="utf-8", errors="surrogateescape") if own.exists() else ""
    with ExitStack() as held:
        yield {name: folder for folder, names in _made(root, belongs_to, held) for name in names}


def memory_kills(groups: Mapping[str, str]) -> int:
    """Return how many processes of the sandbox were killed because it had no memory left; 0 without a cgroup."""
    for name in _KILLS if "memory" in groups else ():
        with suppress(OSError):
            text = Path(groups["memory"], name).read_text(encoding="ascii")
            return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))
    return 0


def _made(root: Path, belongs_to: str, held: ExitStack) -> Iterator[tuple[str, tuple[str, ...]]]:
    name = f"{_NAME}-{os.getpid()}-{os.urandom(4).hex()}"
    memory, processes = str(int(_physical_memory() * _PART_OF_MEMORY)), str(PROCESSES)
    of = {names: path for _, names, path in (line.split(":", 2) for line in belongs_to.splitlines())}
    if (root / "cgroup.controllers").exists():
        beside = (root / of.get("", "/").lstrip("/")).parent if of.get("", "/") != "/" else root
        if _group(beside / name, {"memory.max": memory, "pids.max": processes}, held):
            yield str(beside / name), ("memory", "pids")
        return
    for controller, limits in (
        ("memory", {"memory.limit_in_bytes": memory}),
        ("pids", {"pids.max": processes}),
    ):
        path = next((path for names, path in of.items() if controller in names.split(",")), "/")
        folder = root / controller / path.lstrip("/") / name
        if _group(folder, limits, held):
            yield str(folder), (controller,)


def _group(folder: Path, limits: dict[str, str], held: ExitStack) -> bool:
    """Make a group with limits; return whether that is allowed."""
    _remove_stale(folder.parent)
    try:
        folder.mkdir()
        held.callback(_remove, folder)
        for name, value in limits.items():
            (folder / name).write_text(value, encoding="ascii")
    except OSError:
        return False
    return True


def _remove_stale(parent: Path) -> None:
    """Remove what judges that were killed have left behind."""
    for folder in parent.glob(f"{_NAME}-*-*"):
        if not Path("/proc", folder.name.split("-")[-2]).exists():
            _remove(folder)


def _remove(folder: Path) -> None:
    with suppress(OSError):  # a process in it may not have ended yet
        folder.rmdir()


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
