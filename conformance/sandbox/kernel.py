"""System calls that Python does not offer and a sandbox needs (Linux only). Each raises OSError with its name."""

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

NEW_USER, NEW_PID, NEW_NET, NEW_IPC, NEW_MOUNT = 0x10000000, 0x20000000, 0x40000000, 0x08000000, 0x00020000
NAMESPACES = {"user": NEW_USER, "mnt": NEW_MOUNT, "ipc": NEW_IPC, "net": NEW_NET, "pid": NEW_PID}  # files in /proc/*/ns
_READ_ONLY, NO_SETUID, NO_DEVICES, NO_EXECUTION = 1, 2, 4, 8
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_DETACH = 2
_PIVOT_ROOT, _CAPSET = {"x86_64": (155, 126), "aarch64": (41, 91)}.get(os.uname().machine, (0, 0))
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_CAPBSET_DROP = 4, 8, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _AMBIENT_RAISE = 38, 47, 2
_CAPABILITY_VERSION = 0x20080522
READ_ALL = 2  # CAP_DAC_READ_SEARCH
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # of a network interface
_libc = ctypes.CDLL(None, use_errno=True)


def unshare(namespaces: int) -> None:
    """Leave namespaces for new ones; a new PID namespace is that of the next child."""
    _check("unshare", _libc.unshare(namespaces))


def join(descriptor: int, namespace: int) -> None:
    """Enter a namespace."""
    _check("setns", _libc.setns(descriptor, namespace))


def make_mounts_private() -> None:
    """Keep the mounts of this mount namespace apart from those of others."""
    _mount(b"none", "/", None, _RECURSIVE | _PRIVATE)


def mount(kind: str, place: str, options: str = "", flags: int = NO_SETUID | NO_DEVICES) -> None:
    """Mount a new file system of a kind, such as tmpfs."""
    _mount(kind.encode(), place, kind.encode(), flags, options.encode())


def bind(source: str, place: str) -> None:
    """Show a file or a folder, with what is mounted in it, at another place."""
    _mount(os.fsencode(source), place, None, _BIND | _RECURSIVE)


def make_read_only(place: str, *, recursively: bool = True) -> None:
    """Forbid writes, devices and set-user-ID programs in a mount, by default also in the mounts in it."""
    attributes = struct.pack("QQQQ", _READ_ONLY | NO_SETUID | NO_DEVICES, 0, 0, 0)
    flags = _AT_RECURSIVE if recursively else 0
    result = _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(place), flags, attributes, len(attributes))
    _check("mount_setattr", result, place)


def change_root(root: str) -> None:
    """Make a mount the root folder, and leave what was the root before."""
    os.chdir(root)
    _check("pivot_root", _libc.syscall(_PIVOT_ROOT, b".", b"."))
    _check("umount2", _libc.umount2(b".", _DETACH))
    os.chdir("/")


def move_root(root: str, old: str) -> None:
    """Make a mount the root folder; what was the root before is in its folder `old`."""
    _check("pivot_root", _libc.syscall(_PIVOT_ROOT, os.fsencode(root), os.fsencode(f"{root}{old}")))
    os.chdir("/")


def start_loopback() -> None:
    """Switch on the interface `lo` of this network namespace."""
    with socket.socket() as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(any_socket, _GET_FLAGS, request), 16)
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", flags | _UP))


def become(uid: int, gid: int, *, reads_all: bool) -> None:
    """Become another user for good; keep the capability to read every file if so asked, also in programs."""
    keep = 1 << READ_ALL if reads_all else 0
    _prctl(_PR_SET_KEEPCAPS, 1)
    try:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        raise OSError(error.errno, f"become user {uid}: {error.strerror}") from error
    drop_capabilities(keep)


def drop_capabilities(keep: int = 0) -> None:
    """Give up all capabilities for good, but for a set of them."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text(encoding="ascii"))
    header, low, high = struct.pack("Ii", _CAPABILITY_VERSION, 0), keep & 0xFFFFFFFF, keep >> 32
    _set_capabilities = struct.pack("6I", *[low] * 3, *[high] * 3)
    for capability in range(last + 1):
        if not keep >> capability & 1:
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # not allowed without capabilities, and not needed
    _check("capset", _libc.syscall(_CAPSET, header, _set_capabilities))
    for capability in range(last + 1):
        if keep >> capability & 1:
            _prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, capability)


def gain_nothing() -> None:
    """Let no program that this process executes have more privileges than it has."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def hide_memory() -> None:
    """Keep other processes of this user from reading or changing this one and those that it forks."""
    _prctl(_PR_SET_DUMPABLE, 0)


def _mount(source: bytes, place: str, kind: bytes | None, flags: int, options: bytes = b"") -> None:
    _check("mount", _libc.mount(source, os.fsencode(place), kind, ctypes.c_ulong(flags), options or None), place)


def _prctl(option: int, *values: int) -> None:
    arguments = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    _check(f"prctl {option}", _libc.prctl(option, *arguments))


def _check(call: str, result: int, place: str = "") -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}", *([place] if place else []))
