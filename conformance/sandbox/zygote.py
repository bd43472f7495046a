"""A zygote: a process that has imported torch, and forks the first process of a sandbox and fork servers into it.

It runs no code of a submission, so it can be used for all of them. The judge asks it in single messages with file
descriptors; each is answered by one message.
"""

import json
import os
import select
import signal
import socket
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from conformance.sandbox import kernel
from conformance.sandbox.build import be_first, identity_maps, leave_namespaces
from conformance.sandbox.plan import Plan, refusal
from conformance.sandbox.restrict import drop_privileges, set_environment, set_limits
from pytest_ddp.pool import fork_server
from pytest_ddp.pool.parent_death import adopt_orphans, die_with

MESSAGE_BYTES = 2**18
CONNECT = b"connect"  # with the descriptor of a further socket to serve
_DESCRIPTORS = 16


def main(control_fd: int, parent: int, preload: Sequence[str]) -> NoReturn:
    """Serve until the judge is gone."""
    try:
        control = socket.socket(fileno=control_fd)
        die_with(parent)
        adopt_orphans()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, _reap)
        fork_server.import_modules(preload)
        control.send(json.dumps({"ready": True}).encode())
        _serve(control)
    except BaseException:  # noqa: BLE001  os._exit below would print nothing
        traceback.print_exc()
    finally:
        os._exit(0)


def _serve(control: socket.socket) -> None:
    """Answer the judge, and forks of it that have connections of their own."""
    controls = [control]
    while True:
        for asking in select.select(controls, [], [])[0]:
            message, fds = _received(asking)
            if not message and asking is control:
                return
            if not message:
                controls.remove(asking)
                asking.close()
            elif message == CONNECT:
                controls.append(socket.socket(fileno=fds[0]))
            else:
                _answer(asking, json.loads(message), fds)


def _received(asking: socket.socket) -> tuple[bytes, list[int]]:
    """Return a message and its descriptors; an empty one if the other side has ended, whatever it left unread."""
    try:
        message, fds, _, _ = socket.recv_fds(asking, MESSAGE_BYTES, _DESCRIPTORS)
    except ConnectionResetError:
        return b"", []
    return message, fds


def _answer(asking: socket.socket, asked: dict[str, Any], fds: list[int]) -> None:
    plan = Plan.from_json(asked["plan"])
    do = _build if asked["do"] == "build" else _start_server
    try:
        answer = do(plan, fds)
    except OSError as error:
        answer = refusal(error)
    for fd in fds:
        os.close(fd)
    with suppress(ConnectionError):
        asking.send(json.dumps(answer).encode())


def _reap(*_: object) -> None:
    """Reap what has ended at once: a sandbox is gone when all its processes are reaped."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _build(plan: Plan, fds: list[int]) -> dict[str, Any]:
    """Fork the first process of a sandbox; answer with its process id."""
    return _through_a_child(plan, fds, lambda between: _become_first(plan, fds[0], between))


def _become_first(plan: Plan, control_fd: int, between: socket.socket) -> None:
    _enter_cgroups(plan)
    leave_namespaces(plan)
    if plan.user_namespace:
        between.send(b'{"unshared": true}')
        between.recv(16)
    pid = os.fork()
    if pid == 0:
        between.close()
        os.setsid()
        be_first(plan, socket.socket(fileno=control_fd))
    between.send(json.dumps({"pid": pid, "entered": True}).encode())


def _start_server(plan: Plan, fds: list[int]) -> dict[str, Any]:
    """Fork a fork server into a sandbox; answer with its process id."""
    control_fd, *namespaces = fds
    return _through_a_child(plan, fds, lambda between: _become_server(plan, control_fd, namespaces, between))


def _become_server(plan: Plan, control_fd: int, namespaces: Sequence[int], between: socket.socket) -> None:
    zygote = os.getppid()
    _enter_cgroups(plan)
    pid = _fork_into(namespaces) if namespaces else os.getpid()
    if pid:
        between.send(json.dumps({"pid": pid}).encode())
        if namespaces:
            return
    for fd in namespaces:
        os.close(fd)
    if pid == 0:
        os.chdir("/")
    os.setsid()
    try:
        set_environment(plan)
        set_limits(plan)
        drop_privileges(plan)
    except (OSError, ValueError) as error:
        between.send(json.dumps(refusal(error)).encode())
        os._exit(1)
    if pid:
        die_with(zygote)
    between.send(b'{"entered": true}')
    between.close()
    fork_server.serve(socket.socket(fileno=control_fd))


def _fork_into(namespaces: Sequence[int]) -> int:
    """Fork a process into namespaces; return its process id, and 0 in it."""
    own = os.stat("/proc/self/ns/user")  # noqa: PTH116  compared with what `fstat` says
    for fd, flag in zip(namespaces, kernel.NAMESPACES.values(), strict=True):
        if not os.path.samestat(own, os.fstat(fd)):  # the own user namespace cannot be entered again
            kernel.join(fd, flag)
    return os.fork()


def _through_a_child(plan: Plan, fds: list[int], work: Callable[[socket.socket], None]) -> dict[str, Any]:
    """Let a child do what only a process can that may leave its namespaces; return what it says.

    It keeps no files of this process but those of `fds`: they would reach ranks.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            if (child := os.fork()) == 0:
                _let_child(work, theirs, fds)
        said = dict[str, Any]()
        while not ("refused" in said or {"pid", "entered"} <= said.keys()):
            said |= _said(ours)
            if said.pop("unshared", False):
                said |= _map_users(plan, child)
                ours.send(b"mapped")
    if "refused" in said or plan.namespaces:  # otherwise the child is the server
        with suppress(ChildProcessError):  # it has been reaped already
            os.waitpid(child, 0)
    return said


def _let_child(work: Callable[[socket.socket], None], theirs: socket.socket, fds: list[int]) -> NoReturn:
    try:
        close_all_but([*fds, theirs.fileno()])
        work(theirs)
    except OSError as error:
        theirs.send(json.dumps(refusal(error)).encode())
    except BaseException:  # noqa: BLE001  os._exit below would print nothing
        traceback.print_exc()
    finally:
        os._exit(0)


def close_all_but(kept: Iterable[int]) -> None:
    """Close all files of this process but these and the standard streams."""
    for low, high in pairwise([2, *sorted(kept), os.sysconf("SC_OPEN_MAX")]):
        os.closerange(low + 1, high)


def _said(between: socket.socket) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(between.recv(4096) or b'{"refused": "the process ended"}')
    return said


def _map_users(plan: Plan, pid: int) -> dict[str, Any]:
    """Write the maps of a new user namespace; return why that failed, if it did."""
    try:
        for name, text in identity_maps(plan).items():
            Path(f"/proc/{pid}/{name}").write_text(text, encoding="ascii")
    except OSError as error:
        return {"refused": f"{error.filename}: {error.strerror}"}
    return {}


def _enter_cgroups(plan: Plan) -> None:
    for folder in set(plan.cgroups.values()):
        Path(folder, "cgroup.procs").write_text("0", encoding="ascii")
