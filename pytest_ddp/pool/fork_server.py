"""The fork server: imports torch and pytest once, stays single-threaded, and forks ranks within milliseconds.

The controller starts it (see `launcher`) and talks to it in lines of JSON over a Unix socket. The request
`fork`, sent with a rank's file descriptors, is answered by `{"forked": pid}`, or by `{"forked": 0, "failed": reason}`
if the system cannot fork. When a rank ends, the server sends `{"exited": pid, "exit_code": code}`. When the controller
is gone, the server kills all its descendants and ends.
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
from contextlib import suppress
from dataclasses import astuple, fields
from typing import Any, NoReturn

from pytest_ddp.pool.parent_death import adopt_orphans, die_with, kill_children, kill_descendants
from pytest_ddp.protocol.shared_files import RankFiles
from pytest_ddp.rank.worker import run_rank

_ranks: set[int] = set()


def main(control_fd: int, parent: int, preload: Sequence[str]) -> NoReturn:
    """Import modules, and serve until the controller is gone."""
    try:
        import_modules(preload)
        if os.getppid() == parent:
            serve(socket.socket(fileno=control_fd))
    except BaseException:  # noqa: BLE001  os._exit below would print nothing
        traceback.print_exc()
    finally:
        os._exit(0)


def import_modules(preload: Sequence[str]) -> None:
    """Import what ranks need; garbage collection in ranks skips the objects of all these modules."""
    for module in preload:
        importlib.import_module(module)
    importlib.import_module("pytest_ddp.rank.collective_hooks").install()  # imports torch
    gc.freeze()


def serve(control: socket.socket) -> NoReturn:
    """Fork ranks until the controller is gone; modules must have been imported."""
    try:
        adopt_orphans()
        _send(control, {"ready": True})
        _serve(control)
    except ConnectionResetError:  # the controller left before it had read everything
        pass
    except BaseException:  # noqa: BLE001  os._exit below would print nothing
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
            _, fds, _, _ = socket.recv_fds(control, 4096, len(fields(RankFiles)))
            if not fds:
                return
            _fork(control, RankFiles(*fds))


def _fork(control: socket.socket, files: RankFiles) -> None:
    server = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        answer: dict[str, Any] = {"forked": 0, "failed": str(error)}
    else:
        if pid == 0:
            _become_rank(control, server, files)
        _ranks.add(pid)
        answer = {"forked": pid}
    for fd in astuple(files):
        os.close(fd)
    _send(control, answer)


def _become_rank(control: socket.socket, server: int, files: RankFiles) -> NoReturn:
    try:
        control.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        die_with(server)
    except BaseException:  # noqa: BLE001  a rank must never return into the server's loop
        os._exit(1)
    run_rank(files)


def _reap(control: socket.socket) -> None:
    """Report every rank that has ended, and kill the processes that it started.

    A rank's process group exists as long as the rank is a zombie. Processes that left the group become the server's
    own children.
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        pid = ended.si_pid
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if pid in _ranks:
            _ranks.remove(pid)
            kill_children(except_for=_ranks)
            _send(control, {"exited": pid, "exit_code": os.waitstatus_to_exitcode(status)})


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    with suppress(OSError):  # the controller is gone: the next read of `control` ends the server
        control.sendall(json.dumps(message).encode() + b"\n")
