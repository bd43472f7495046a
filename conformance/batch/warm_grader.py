"""A process that has imported the grader and drawn the scenarios of a course; it forks one grader per submission.

A fork takes milliseconds. An interpreter that imports torch and draws the same scenarios takes ten seconds of CPU time.
The process runs nothing of a submission, nor do the graders: their ranks do.

The course's process (see `graders`) sends a command line with two descriptors: a socket and a log file. A byte is sent
through the socket when the grader has been forked, and its exit code when it has ended. A grader is killed when its
socket is shut down.
"""

import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from conformance.execution.fork_servers import ForkServers, give_next
from conformance.grading.grade import Grading
from conformance.judging.ahead import draw_ahead
from conformance.judging.draws import nothing_kept
from conformance.oracle.remembered import remembering
from conformance.sandbox.zygote import close_all_but
from pytest_ddp.pool.parent_death import die_with

Command = Callable[[Sequence[str]], int]
FORKED = b"+"  # is sent when a grader has been forked
_REQUEST_BYTES = 2**18
_MORE = 8  # times the usual bytes are remembered: all graders share them


@dataclass(frozen=True)
class _Grader:
    """A grader that runs: its process, a descriptor of it, and the socket through which its end is reported."""

    pid: int
    process: int
    channel: socket.socket

    def end(self) -> None:
        """Kill what is left of it, and report its exit code."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.process)
        with self.channel, suppress(OSError):
            self.channel.send(str(os.waitstatus_to_exitcode(status)).encode())


def main(command: Command, control_fd: int, *, small: bool) -> NoReturn:
    """Draw what all graders will draw, and fork graders, which run the command, until the course's process is gone.

    The first message says how to grade. Graders share zygotes, which start meanwhile, each as an interpreter of its
    own: nothing of this process is in them.
    """
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        zygotes = ForkServers(small=small)
        zygotes.begin()
        with remembering(_MORE), selectors.DefaultSelector() as selector:
            control = socket.socket(fileno=control_fd)
            if asked := control.recv(_REQUEST_BYTES):
                grading = Grading(**json.loads(asked))
                with nothing_kept():
                    draw_ahead(grading.draws(grading.components))
                _serve(control, selector, zygotes, command)
        code = 0
    except BaseException:  # noqa: BLE001  os._exit would hide it
        traceback.print_exc()
    finally:
        os._exit(code)


def _serve(control: socket.socket, selector: selectors.BaseSelector, zygotes: ForkServers, command: Command) -> None:
    selector.register(control, selectors.EVENT_READ)
    while True:
        for grader in {key.data for key, _ in selector.select()}:
            if grader is not None:
                selector.unregister(grader.process)
                selector.unregister(grader.channel)
                grader.end()
                continue
            request, fds, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 2)
            if not fds:
                return
            forked = _fork(command, json.loads(request), zygotes, *fds)
            for source in (forked.process, forked.channel):
                selector.register(source, selectors.EVENT_READ, forked)


def _fork(command: Command, request: dict[str, Any], zygotes: ForkServers, channel: int, log: int) -> _Grader:
    try:
        shared = zygotes.connected()
    except OSError:  # one has ended: the grader starts its own
        shared = None
    server, pid = os.getpid(), os.fork()
    if pid == 0:
        _become_grader(server, log, shared, partial(command, request["arguments"]), request["temporary"])
    os.close(log)
    if shared:
        shared.close()
    grader = _Grader(pid, os.pidfd_open(pid), socket.socket(fileno=channel))
    with suppress(OSError):  # the course does not wait for it any more
        grader.channel.send(FORKED)
    return grader


def _become_grader(
    server: int, log: int, shared: ForkServers | None, grade: Callable[[], int], temporary: str
) -> NoReturn:
    code = 1
    try:
        os.setsid()
        die_with(server)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for fd, source in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
            os.dup2(source, fd)
        if shared:
            give_next(shared)
        close_all_but(shared.descriptors if shared else ())
        os.environ["TMPDIR"] = tempfile.tempdir = temporary
        code = grade()
    except BaseException:  # noqa: BLE001  os._exit would hide it
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
