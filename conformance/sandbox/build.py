"""The first process of a sandbox: makes its namespaces, mounts what the plan shows, and keeps the ranks' store.

Its end is the end of every process in the sandbox. It ends when the judge closes its socket, or is gone.
"""

import json
import os
import signal
import socket
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from conformance.sandbox import kernel
from conformance.sandbox.plan import TMP_BYTES, Plan, refusal
from conformance.sandbox.restrict import drop_privileges
from conformance.sandbox.view import DEVICES, HOME, SHARED_MEMORY, TMP, WORK, View
from pytest_ddp.pool.parent_death import die_with
from pytest_ddp.pool.rendezvous import HOST

_BASE = "/tmp"  # noqa: S108  what is there is not changed: the mount is seen in the new namespace alone
_OLD, _NEW = "/old", "/new"
_GO = b"go"
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}


def leave_namespaces(plan: Plan) -> None:
    """Leave the namespaces of the judge; the PID namespace is that of the next child."""
    spaces = kernel.NEW_PID | kernel.NEW_MOUNT | kernel.NEW_IPC | kernel.NEW_NET
    kernel.unshare(spaces | (kernel.NEW_USER if plan.user_namespace else 0))


def identity_maps(plan: Plan) -> dict[str, str]:
    """Return what to write to files in /proc/PID, so that all ids, or only the own ones, are the same inside."""
    if plan.uid is None:
        return {
            "setgroups": "deny",
            "uid_map": f"{os.getuid()} {os.getuid()} 1\n",
            "gid_map": f"{os.getgid()} {os.getgid()} 1\n",
        }
    return {name: _as_here(Path("/proc/self", name).read_text(encoding="ascii")) for name in ("uid_map", "gid_map")}


def _as_here(ranges: str) -> str:
    lines = [line.split() for line in ranges.splitlines()]
    return "".join(f"{first} {first} {count}\n" for first, _, count in lines)


def be_first(plan: Plan, control: socket.socket) -> NoReturn:
    """Be the first process of a sandbox; tell the judge its store's port, or what this machine refuses."""
    try:
        _make_root(plan.view)
        kernel.start_loopback()
        _report(control)
        drop_privileges(plan)
        _serve_store(control)
    except OSError as error:
        with suppress(OSError):
            control.send(json.dumps(refusal(error)).encode())
    except BaseException:  # noqa: BLE001  os._exit below would print nothing
        traceback.print_exc()
    finally:
        os._exit(0)


def _make_root(view: View) -> None:
    """Make a file system that shows what the view says, and nothing else."""
    kernel.make_mounts_private()
    kernel.mount("tmpfs", _BASE, "mode=755")
    for folder in (_OLD, _NEW):
        Path(_BASE + folder).mkdir()
    kernel.move_root(_BASE, _OLD)
    kernel.mount("tmpfs", _NEW, "mode=755,size=16m")
    _make_own_folders()
    for place in view.shown:
        _show(place)
    for place in view.emptied:
        kernel.mount("tmpfs", _NEW + place, "mode=755,size=4k")
        kernel.make_read_only(_NEW + place)
    for link, target in view.links:
        _make_parent(link).symlink_to(target)
    for name, text in view.texts:
        _make_parent(name).write_text(text, encoding="utf-8")
    kernel.make_read_only(_NEW, recursively=False)
    kernel.change_root(_NEW)


def _make_own_folders() -> None:
    for place, options in ((TMP, f"size={TMP_BYTES}"), (SHARED_MEMORY, f"size={TMP_BYTES}")):
        _make_parent(place).mkdir()
        kernel.mount("tmpfs", _NEW + place, f"mode=1777,{options}")
    for place in (HOME, WORK):
        folder = _make_parent(place)
        folder.mkdir()
        folder.chmod(0o777)
    _make_parent("/proc").mkdir()
    kernel.mount("proc", f"{_NEW}/proc", flags=kernel.NO_SETUID | kernel.NO_DEVICES | kernel.NO_EXECUTION)
    for device in DEVICES:
        _make_parent(f"/dev/{device}").touch()
        kernel.bind(f"{_OLD}/dev/{device}", f"{_NEW}/dev/{device}")
    for name, target in _LINKS.items():
        _make_parent(f"/dev/{name}").symlink_to(target)


def _make_parent(place: str) -> Path:
    """Return the path of a place in the new root; make the folders above it."""
    path = Path(_NEW + place)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _show(place: str) -> None:
    source, target = Path(_OLD + place), _make_parent(place)
    if source.is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    kernel.bind(str(source), str(target))
    kernel.make_read_only(str(target))


def _report(control: socket.socket) -> None:
    """Send the judge this sandbox's namespaces and its folders for temporary files."""
    spaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in kernel.NAMESPACES]
    folders = [os.open(place, os.O_RDONLY | os.O_DIRECTORY) for place in (TMP, SHARED_MEMORY)]
    socket.send_fds(control, [json.dumps({"made": True}).encode()], spaces + folders)
    for fd in spaces + folders:
        os.close(fd)


def _serve_store(control: socket.socket) -> None:
    """Keep the store in which ranks meet until the judge is gone; reap processes whose parents have ended."""
    from torch.distributed import TCPStore  # noqa: PLC0415  the judge's command imports this module before torch

    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    control.send(json.dumps({"port": store.port}).encode())
    if control.recv(64) == _GO:
        die_with(os.getppid())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.recv(64)
