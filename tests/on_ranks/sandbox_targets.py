"""What the tests of the sandbox do on ranks: each looks at the machine as a submission could."""

import json
import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import psutil


def look(body: bytes) -> bytes:
    """Say which of the paths can be listed or read, and what this process is."""
    asked = json.loads(body)
    return json.dumps(
        {
            "seen": [path for path in asked.get("paths", ()) if _can_read(path)],
            "writable": [path for path in asked.get("paths", ()) if _can_write(path)],
            "environment": dict(os.environ),
            "begun_with": _begun_with(),
            "cmdline": psutil.Process().cmdline(),
            "uid": os.getuid(),
            "pids": len(psutil.pids()),
            "addresses": sorted(psutil.net_if_addrs()),
            "home": [place.name for place in Path.home().iterdir()],
            "cwd": str(Path.cwd()),
        }
    ).encode()


def _can_read(path: str) -> bool:
    try:
        list(Path(path).iterdir()) if Path(path).is_dir() else Path(path).read_bytes()
    except OSError:
        return False
    return True


def _can_write(path: str) -> bool:
    try:
        (Path(path) / "written").write_text("x", encoding="utf-8")
    except OSError:
        return False
    return True


def _begun_with() -> str:
    with suppress(OSError):  # another user's
        return Path("/proc/self/environ").read_text(encoding="utf-8", errors="replace")
    return ""


def attack(body: bytes) -> bytes:
    """Try to signal a process and to connect to a port of the judge, and to reach the network."""
    asked = json.loads(body)
    tries = {
        "signal": lambda: os.kill(asked["pid"], signal.SIGTERM),
        "first": lambda: os.kill(1, signal.SIGKILL),
        "connect": lambda: socket.create_connection(("127.0.0.1", asked["port"]), timeout=5),
        "network": lambda: socket.create_connection(("192.0.2.1", 80), timeout=5),
        "memory": lambda: Path("/proc/1/mem").read_bytes(),
        "descriptors": lambda: Path("/proc/1/fd/1").readlink(),
        "mount": lambda: Path("/usr/written").touch(),
    }
    return json.dumps({name: _said(attempt) for name, attempt in tries.items()}).encode()


def _said(attempt) -> str:
    try:
        attempt()
    except OSError as error:
        return type(error).__name__ if type(error) is not OSError else str(error)
    return "done"


def leave_files(_: bytes) -> bytes:
    """Write to all places for temporary files; say what has been there before."""
    places = [Path(place) for place in ("/tmp", "/dev/shm", Path.home())]
    found = [place.name for parent in places for place in parent.iterdir() if place.name.startswith("left")]
    for parent in places:
        (parent / "left").touch()
    return json.dumps(found).encode()


def write_shared(body: bytes) -> bytes:
    """Write a file in a folder that all ranks share."""
    (Path(body.decode()) / os.environ["RANK"]).touch()
    return b""


def stand_still(_: bytes) -> bytes:
    while True:
        time.sleep(60)


def end_by_signal(_: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def fill(body: bytes) -> bytes:
    """Write to a place until there is no space left, and say what the system says."""
    block = bytes(2**26)
    try:
        for number in range(1000):
            (Path(body.decode()) / str(number)).write_bytes(block)
    except OSError as error:
        return str(error).encode()
    return b"no end"
