"""A pytest plugin that replaces ranks by one process that answers for all of them at once: every phase passes.

The controller is the real one, so `scale.py` measures it with more ranks than a machine can run.
"""

import os
import resource
import selectors
import socket
from typing import Any

import pytest

from pytest_ddp.controller import rank_pools
from pytest_ddp.planning.plan import Machine
from pytest_ddp.protocol.messages import READ_BYTES, Answer, Close, Decoder, Launch, Run, encode
from pytest_ddp.protocol.phases import PhaseAnswer
from pytest_ddp.protocol.shared_files import SharedFiles

PASSED = PhaseAnswer(passed=0.0).encode()


class SimulatedLauncher:
    """Starts ranks in the answering process."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._control.close()
            answer_for_all(theirs)
            os._exit(0)
        theirs.close()

    def start(self, shared: SharedFiles) -> int:
        """Hand the channel of a rank to the answering process."""
        socket.send_fds(self._control, [b"r"], [shared.rank_channel.fileno()])
        shared.rank_channel.close()
        return 2**30 + shared.rank  # no process has such an id, so nothing is killed

    def exit_code(self, pid: int, seconds: float = 0) -> int | None:
        """No rank ever ends by itself."""

    def close(self) -> None:
        """End the answering process."""
        if self._pid:
            self._control.close()
            os.waitpid(self._pid, 0)
            self._pid = 0


def answer_for_all(control: socket.socket) -> None:
    """Answer what the controller sends to any rank, until it closes the control channel."""
    waiting = selectors.DefaultSelector()
    waiting.register(control, selectors.EVENT_READ, None)
    while True:
        for key, _ in waiting.select():
            if key.data is None:
                _, fds, _, _ = socket.recv_fds(control, 1, 1)
                if not fds:
                    return
                waiting.register(socket.socket(fileno=fds[0]), selectors.EVENT_READ, Decoder())
                continue
            channel: Any = key.fileobj
            if not answer(channel, key.data):
                waiting.unregister(channel)
                channel.close()


def answer(channel: socket.socket, decoder: Decoder) -> bool:
    """Answer as a rank does; return whether the rank goes on."""
    data = channel.recv(READ_BYTES)
    for message in decoder.feed(data):
        match message:
            case Launch():
                channel.sendall(encode(Answer(-1, "returned")))
            case Run():
                channel.sendall(encode(Answer(message.number, "returned", body=PASSED)))
            case Close():
                return False
    return bool(data)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Put the simulation in the place of ranks, on a machine that is large enough."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    launcher = SimulatedLauncher()
    rank_pools.launcher_for = lambda _: launcher
    Machine.max_world_size = lambda *_: 10**6
    config.add_cleanup(launcher.close)
