"""A rank host: a process on some node that starts ranks there for a controller elsewhere.

    goodbye = serve_host(("10.0.0.1", 41234), secret, node="worker-b", ranks=(4, 5, 6, 7))

connects to the controller that listens at this address (`hosts.Hosts`), serves until that says goodbye or is gone, and
returns. The host needs the same packages and the same files at the same places as the controller. It collects no tests
and prints nothing. When `serve_host` returns, none of its ranks is left.
"""

import contextlib
import os
import selectors
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any

from pytest_ddp.errors import LaunchError, ProtocolError
from pytest_ddp.hosts.connection import Connection, connect
from pytest_ddp.hosts.messages import (
    Ask,
    Closed,
    Data,
    Exited,
    Goodbye,
    Hello,
    HostMessage,
    Kill,
    Preload,
    Reply,
    Start,
)
from pytest_ddp.hosts.mirror import Changes
from pytest_ddp.hosts.network import interface_variables
from pytest_ddp.hosts.outbox import Outbox
from pytest_ddp.pool.launcher import ForkLauncher, Launcher, SpawnLauncher, can_fork
from pytest_ddp.pool.rank_process import RankProcess
from pytest_ddp.pool.stack_dumps import dump_stacks
from pytest_ddp.protocol.flight_recorder import make_room
from pytest_ddp.protocol.messages import READ_BYTES
from pytest_ddp.protocol.shared_files import SharedFiles, memory_file

LOST = "the connection to the controller has ended"
_TICK_SECONDS = 0.5
_LEAVE_SECONDS = (
    30.0  # after its goodbye, the controller is to leave first: launchers name the first process that fails
)
_EXIT_POLL_SECONDS = 0.01
_CODE_SECONDS = 2.0  # after the end of a rank's channel, its launcher may not know yet how it ended


def serve_host(
    address: tuple[str, int],
    secret: bytes,
    *,
    node: str,
    ranks: tuple[int, ...],
    process: int | None = None,
    environment: Mapping[str, str] | None = None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Goodbye:
    """Start ranks for the controller at `address` until it says goodbye; return that.

    Args:
        address: where the controller listens.
        secret: what both sides know, and nobody else.
        node: the name of this node in reports; hosts with equal names are on one node.
        ranks: the ranks of the job that this host starts.
        process: the number of this process in the job, by default its first rank.
        environment: the variables of this process of the job, by default those of this process as they are now.
        is_wanted: is asked twice a second; the host leaves when it is False.

    Raises:
        OSError: nothing listens there.
        Refused: the controller has another secret.
    """
    connection = connect(address, secret)
    us = connection.socket.getsockname()[0]
    host = RankHost(connection, is_wanted)
    try:
        number = min(ranks, default=-1) if process is None else process
        variables = dict(os.environ if environment is None else environment)
        connection.send(Hello(node, number, ranks, us, {**variables, **interface_variables(us, variables)}))
        goodbye = host.serve()
    except (OSError, ProtocolError) as error:
        return Goodbye(1, f"{LOST} ({error})")
    else:
        host.end_ranks()
        if is_wanted():  # else no launcher is left that would name it
            connection.await_end(_LEAVE_SECONDS)
        return goodbye
    finally:
        host.close()


@dataclass
class _Hosted:
    """A rank of this host."""

    process: RankProcess
    launcher: Launcher
    changes: Changes
    outbox: Outbox
    recorder: int
    closed_at: float | None = None

    @property
    def exit_code(self) -> tuple[bool, int | None]:
        """Whether the process has ended, and its exit code, which the launcher may learn a little later."""
        code = self.launcher.exit_code(self.process.pid, 0.0)
        late = self.closed_at is not None and time.monotonic() - self.closed_at > _CODE_SECONDS
        return code is not None or (late and not self.process.is_running), code


@dataclass
class RankHost:
    """Carries out what the controller asks for, one message after the other, and relays what ranks send."""

    connection: Connection
    is_wanted: Callable[[], bool] = lambda: True
    _launchers: dict[str, Launcher] = field(default_factory=dict)
    _hosted: dict[int, _Hosted] = field(default_factory=dict)
    _recorders: dict[int, IO[bytes]] = field(default_factory=dict)
    _goodbye: Goodbye | None = None

    def __post_init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.connection, selectors.EVENT_READ, self._read_controller)
        self._handlers: dict[type[HostMessage], Callable[[Any], None]] = {
            Preload: self._preload,
            Start: self._start,
            Data: self._deliver,
            Kill: self._kill,
            Ask: self._answer,
            Goodbye: self._leave,
        }

    def serve(self) -> Goodbye:
        """Serve until the controller says goodbye, is gone, or the host is not wanted any more."""
        checked = time.monotonic()
        while self._goodbye is None:
            ending = any(hosted.closed_at for hosted in self._hosted.values())
            for key, events in self._selector.select(_EXIT_POLL_SECONDS if ending else _TICK_SECONDS):
                key.data(events)
            self._report_exits()
            if time.monotonic() - checked > _TICK_SECONDS:
                checked = time.monotonic()
                if not self.is_wanted():
                    return Goodbye(1, "the process that started this host has ended")
                self._push(self._hosted.values())
        return self._goodbye

    def end_ranks(self) -> None:
        """End all ranks, and what starts them."""
        for launcher in self._launchers.values():
            launcher.close()
        self._launchers.clear()

    def close(self) -> None:
        """End all ranks and the connection."""
        self.end_ranks()
        self.connection.close()
        self._selector.close()

    def _read_controller(self, _: int) -> None:
        messages = self.connection.receive()
        if messages is None:
            self._goodbye = Goodbye(1, LOST)
        for message in messages or ():
            self._handlers[type(message)](message)

    def _leave(self, message: Goodbye) -> None:
        self._goodbye = message

    def _launcher(self, device: str) -> Launcher:
        if device not in self._launchers:
            self._launchers[device] = ForkLauncher() if can_fork(device) else SpawnLauncher()
        return self._launchers[device]

    def _preload(self, message: Preload) -> None:
        launcher = self._launcher(message.device)
        if isinstance(launcher, ForkLauncher):
            launcher.preload = message.modules
            launcher.start_server()

    def _start(self, message: Start) -> None:
        if message.recorder not in self._recorders:
            self._recorders[message.recorder] = memory_file()
        recorder = self._recorders[message.recorder]
        make_room(recorder.fileno(), message.rank + 1)
        shared = SharedFiles.make(message.rank, recorder)
        launcher = self._launcher(message.device)
        try:
            pid = launcher.start(shared)
        except LaunchError as error:
            shared.close()
            self.connection.send(Closed(message.process, str(error)), Exited(message.process, None))
            return
        process = RankProcess(message.rank, pid, shared)
        changes, outbox = Changes(message.process, shared), Outbox(shared.channel)
        self._hosted[message.process] = _Hosted(process, launcher, changes, outbox, message.recorder)
        self._watch(message.process)

    def _watch(self, number: int) -> None:
        hosted = self._hosted[number]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if hosted.outbox.is_full else 0)
        call = partial(self._channel_ready, number)
        register = self._selector.modify if hosted.process.fileno() in self._selector.get_map() else None
        (register or self._selector.register)(hosted.process.fileno(), events, call)

    def _channel_ready(self, number: int, events: int) -> None:
        hosted = self._hosted[number]
        if events & selectors.EVENT_WRITE:
            hosted.outbox.flush()
            self._watch(number)
        if events & selectors.EVENT_READ:
            try:
                data = hosted.outbox.socket.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._relay(number, data)

    def _relay(self, number: int, data: bytes) -> None:
        hosted = self._hosted[number]
        if not data:
            hosted.closed_at = time.monotonic()
            self._selector.unregister(hosted.process.fileno())
        update = hosted.changes.take()
        self.connection.send(*([update] if update else []), Data(number, data) if data else Closed(number))

    def _deliver(self, message: Data) -> None:
        hosted = self._hosted.get(message.process)
        if hosted is not None and hosted.closed_at is None:
            hosted.outbox.put(message.body)
            if hosted.outbox.is_full:
                self._watch(message.process)

    def _kill(self, message: Kill) -> None:
        if message.process in self._hosted:
            self._hosted[message.process].process.kill()

    def _answer(self, message: Ask) -> None:
        asked = [self._hosted[number] for number in message.processes if number in self._hosted]
        processes = [hosted.process for hosted in asked]
        value = None
        if message.what == "stacks":
            dump_stacks(processes)
        if message.what == "status":
            value = [(one.status, one.is_busy, one.cpu_seconds) for one in processes]
        self._push(asked)
        self.connection.send(Reply(message.number, value))

    def _push(self, asked: Any) -> None:
        updates = [update for hosted in asked if (update := hosted.changes.take())]
        if updates:
            self.connection.send(*updates)

    def _report_exits(self) -> None:
        for number, hosted in list(self._hosted.items()):
            if hosted.closed_at is not None:
                has_ended, code = hosted.exit_code
                if has_ended:
                    self._forget(number, code)

    def _forget(self, number: int, code: int | None) -> None:
        hosted = self._hosted.pop(number)
        self._push([hosted])
        self.connection.send(Exited(number, code))
        hosted.process.shared.close()
        if all(other.recorder != hosted.recorder for other in self._hosted.values()):
            with contextlib.suppress(KeyError):
                self._recorders.pop(hosted.recorder).close()
