"""The fork server: imports torch and pytest once, stays single-threaded, and forks ranks that start in milliseconds.

It is started by the controller (see `launcher`) and speaks lines of JSON over a Unix socket:
`{"fork": true}` with a rank's five file descriptors is answered by `{"forked": pid}`, or by `{"failed": reason}` where
the system forks no more; a rank that ends is told as `{"exited": pid, "status": status}`. When the controller is gone
it kills everything below it and leaves.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import traceback
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, NoReturn

from pytest_ddp.pool.parent_death import adopt_orphans, die_with, kill_children, kill_descendants
from pytest_ddp.protocol.shared_files import RankFiles
from pytest_ddp.rank.worker import run_rank

FDS = 5
_ranks: set[int] = set()


def main(control_fd: int, parent: int, preload: Sequence[str]) -> NoReturn:
    """Serve until the controller is gone."""
    control = socket.socket(fileno=control_fd)
    try:
        adopt_orphans()
        for module in preload:
            importlib.import_module(module)
        _watch_collectives()
        gc.freeze()  # ranks need not look through all of torch whenever they collect garbage
        _say(control, {"ready": True, "threads": _threads()})
        if os.getppid() == parent:
            _serve(control)
    except BaseException:  # noqa: BLE001  the way out below tells nothing
        traceback.print_exc()
    finally:
        kill_descendants()
        os._exit(0)


def _serve(control: socket.socket) -> None:
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        readable, _, _ = select.select([control.fileno(), wake], [], [])
        if wake in readable:
            os.read(wake, 4096)
            _reap(control)
        if control.fileno() in readable:
            if not (fds := _asked(control)):
                return
            _fork(control, RankFiles(*fds))


def _asked(control: socket.socket) -> Sequence[int]:
    """Return the descriptors for the rank that is wanted; none when the controller is gone."""
    try:
        _, fds, _, _ = socket.recv_fds(control, 4096, FDS)
    except ConnectionResetError:  # it left without hearing all that we said
        return []
    return fds


def _fork(control: socket.socket, files: RankFiles) -> None:
    me = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:  # the ranks that are there are none the worse
        answer: dict[str, Any] = {"failed": str(error)}
    else:
        if pid == 0:
            _become_rank(control, me, files)
        _ranks.add(pid)
        answer = {"forked": pid}
    for fd in astuple(files):
        os.close(fd)
    _say(control, answer)


def _become_rank(control: socket.socket, zygote: int, files: RankFiles) -> NoReturn:
    try:
        control.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        die_with(zygote)
    except BaseException:  # noqa: BLE001  nothing may return into the server's loop
        os._exit(1)
    run_rank(files)


def _reap(control: socket.socket) -> None:
    """Report every rank that ended; first kill its process group, which still exists while the rank is a zombie.

    Children of a rank that have left its process group come to us when it ends, and are killed then.
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        if os.getpgid(ended.si_pid) == ended.si_pid:
            os.killpg(ended.si_pid, signal.SIGKILL)
        _, status = os.waitpid(ended.si_pid, 0)
        if ended.si_pid in _ranks:
            _ranks.remove(ended.si_pid)
            kill_children(except_for=_ranks)
            _say(control, {"exited": ended.si_pid, "status": os.waitstatus_to_exitcode(status)})


def _watch_collectives() -> None:
    from pytest_ddp.rank.collective_hooks import install  # noqa: PLC0415  after the preload, which imports torch

    install()


def _threads() -> int:
    tasks = "/proc/self/task"
    return len(os.listdir(tasks)) if os.path.isdir(tasks) else 1  # noqa: PTH112, PTH208  a fork server stays light


def _say(control: socket.socket, words: dict[str, Any]) -> None:
    try:
        control.sendall(json.dumps(words).encode() + b"\n")
    except OSError:  # the controller is gone: the next read of `control` says so and ends the server
        return
