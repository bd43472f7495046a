"""The rank hosts of a run as the controller sees them: it listens for them, and a thread receives what they send."""

import contextlib
import itertools
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from pytest_ddp.errors import LaunchError, ProtocolError
from pytest_ddp.hosts.connection import SILENT_SECONDS, Refused, welcome
from pytest_ddp.hosts.host import Host, Question
from pytest_ddp.hosts.messages import Closed, Data, Exited, Goodbye, Hello, HostMessage, Kill, Reply, Update
from pytest_ddp.hosts.mirror import Copies
from pytest_ddp.hosts.outbox import Outbox
from pytest_ddp.planning.world import rank_list
from pytest_ddp.protocol.shared_files import SharedFiles

# No system has process ids that large: a remote rank's number never names a process of this machine.
_FIRST_NUMBER = 2**30
_ASK_SECONDS = 60.0
_REPORT_SECONDS = 5.0


@dataclass(eq=False)
class RemoteRank:
    """A rank of a host: its copies here, and the other end of its channel."""

    host: Host
    copies: Copies
    outbox: Outbox


@dataclass
class Hosts:
    """All rank hosts of a run; use as a context manager.

    Attributes:
        secret: what hosts must know.
        hosts: those that have connected, in the order of their first ranks.
    """

    listener: socket.socket
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    hosts: list[Host] = field(default_factory=list)
    _remote: dict[int, RemoteRank] = field(default_factory=dict)
    _exit_codes: dict[int, int | None] = field(default_factory=dict)
    _joined: list[Host] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(_FIRST_NUMBER))
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _said_goodbye: bool = False
    _closed: bool = False

    @classmethod
    def listen(cls, address: str = "", port: int = 0, secret: bytes | None = None) -> Self:
        """Listen on the interface with this address, by default on all; raise OSError if that is not possible."""
        listener = socket.create_server((address, port), backlog=1024)
        return cls(listener, secret or secrets.token_bytes(32))

    def __post_init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._poked)
        self._selector.register(self.listener, selectors.EVENT_READ, lambda _: self._accept())
        self._thread = threading.Thread(target=self._receive_for_ever, name="pytest-ddp-hosts", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where hosts connect."""
        port: int = self.listener.getsockname()[1]
        return port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(0)

    def say_goodbye(self, exit_code: int, reason: str = "") -> None:
        """Let all hosts end their ranks, and leave with this exit code as soon as this process has ended or closed."""
        if not self._said_goodbye:
            self._said_goodbye = True
            for host in self.hosts:
                host.send(Goodbye(exit_code, reason))

    def close(self, exit_code: int) -> None:
        """Say goodbye and close all connections: all hosts leave with this exit code."""
        if self._closed:
            return
        self.say_goodbye(exit_code)
        self._closed = True
        self._poke()
        self._thread.join(SILENT_SECONDS)
        for number in list(self._remote):
            self._end(number, None)
        for host in self.hosts:
            host.connection.close()
        for end in (self.listener, self._wake, self._woken):
            end.close()

    def wait_for(
        self,
        ranks: Collection[int],
        seconds: float,
        report: Callable[[Sequence[int]], None],
        numbers_of: Callable[[Hello], Iterable[int]] = lambda hello: hello.ranks,
    ) -> None:
        """Wait until the hosts of these ranks have connected; call `report` now and then with those that have not.

        With `numbers_of`, wait for hosts that have other numbers than those of their ranks.

        Raises:
            LaunchError: some have not after so many seconds.
        """
        end = time.monotonic() + seconds
        while True:
            missing = sorted(set(ranks).difference(*(numbers_of(host.hello) for host in self.hosts)))
            left = end - time.monotonic()
            if not missing:
                return
            if left <= 0:
                raise LaunchError(f"no host for {rank_list(missing)} within {seconds:g} s")
            known = len(self.hosts)
            if not self._wait(lambda: len(self.hosts) > known, min(left, _REPORT_SECONDS)):  # noqa: B023  called here
                report(missing)

    def host_of(self, rank: int) -> Host | None:
        """Return the host that starts a rank of the job; None if there is none."""
        return next((host for host in self.hosts if rank in host.hello.ranks), None)

    def adopt(self, host: Host, shared: SharedFiles) -> int:
        """Return a number for a new rank of a host; what it sends arrives in these files from now on."""
        if host.lost:
            raise LaunchError(host.lost)
        number = next(self._numbers)
        copies = Copies.of(shared)
        for other in list(self._remote.values()):
            if os.path.sameopenfile(other.copies.recorder, copies.recorder) and other.copies.rank == copies.rank:
                other.copies.replaced = True
        self._remote[number] = RemoteRank(host, copies, Outbox(shared.rank_channel.dup()))
        shared.rank_channel.close()
        return number

    def deliver(self, number: int, data: bytes) -> None:
        """Send bytes to a rank."""
        self._send(number, Data(number, data))

    def kill(self, number: int) -> None:
        """End a rank."""
        self._send(number, Kill(number))

    def _send(self, number: int, message: HostMessage) -> None:
        remote = self._remote.get(number)
        if remote is not None:
            remote.host.send(message)

    def exit_code(self, number: int, seconds: float) -> int | None:
        """Wait until a rank has ended; return its exit code, None if it is not known."""
        self._wait(lambda: number in self._exit_codes or number not in self._remote, seconds)
        return self._exit_codes.get(number)

    def ask(self, what: str, numbers: Collection[int]) -> list[Any]:
        """Ask the hosts of these ranks something, all at once; return their answers. A host that gives none is lost."""
        asked = self.begin_to_ask(what, numbers)
        if not self._wait(lambda: all(question.is_over for question in asked), _ASK_SECONDS):
            for question in asked:
                if not question.is_over:
                    question.host.give_up(f"did not answer for {_ASK_SECONDS:g} s")
        return [question.answer for question in asked]

    def begin_to_ask(self, what: str, numbers: Collection[int]) -> list[Question]:
        """Ask without waiting for the answers; return one question for each host."""
        by_host: dict[Host, list[int]] = {}
        for number in numbers:
            if (remote := self._remote.get(number)) is not None and not remote.host.lost:
                by_host.setdefault(remote.host, []).append(number)
        return [host.ask(next(self._numbers), what, ranks) for host, ranks in by_host.items()]

    def _wait(self, is_over: Callable[[], bool], seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(is_over, seconds)

    # What follows runs in threads of our own.

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            accepted, _ = self.listener.accept()
            threading.Thread(target=self._greet, args=(accepted,), daemon=True).start()

    def _greet(self, accepted: socket.socket) -> None:
        """Let a host in, if it is one: whoever connects and says nothing must not keep others waiting."""
        try:
            connection = welcome(accepted, self.secret)
            messages = connection.receive()
        except (OSError, Refused, ProtocolError):
            return
        if messages and isinstance(messages[0], Hello):
            self._joined.append(Host(connection, messages[0]))
            self._poke()

    def _poke(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.send(b".")

    def _poked(self, _: int) -> None:
        self._woken.recv(4096)
        while self._joined:
            host = self._joined.pop()
            self._selector.register(host.connection, selectors.EVENT_READ, partial(self._host_ready, host))
            with self._changed:
                self.hosts = sorted([*self.hosts, host], key=lambda one: one.hello.ranks or (_FIRST_NUMBER,))
                self._changed.notify_all()

    def _receive_for_ever(self) -> None:
        while not self._closed:
            for key, events in self._selector.select():
                key.data(events)

    def _host_ready(self, host: Host, _: int) -> None:
        try:
            messages = host.connection.receive()
            for message in messages or ():
                self._handle(host, message)
        except ConnectionError:
            messages = None
        except Exception as error:  # noqa: BLE001  a full disk, or an error of ours: no run may wait for ever
            told = isinstance(error, OSError | ProtocolError)
            self._lose(host, str(error) if told else f"reading what it sent failed with {error!r}")
            return
        if messages is None:
            self._lose(host, "its rank host has ended")

    def _handle(self, host: Host, message: HostMessage) -> None:
        if isinstance(message, Reply):
            with self._changed:
                host.take(message)
                self._changed.notify_all()
            return
        remote = self._remote.get(getattr(message, "process", 0))
        if remote is None:
            return
        if isinstance(message, Update):
            remote.copies.apply(message)
        elif isinstance(message, Data):
            self._put(remote.outbox, message.body)
        elif isinstance(message, Closed):
            if message.failed:
                remote.copies.print(message.failed)
            self._finish(remote.outbox)
        elif isinstance(message, Exited):
            self._end(message.process, message.exit_code)

    def _put(self, outbox: Outbox, data: bytes) -> None:
        outbox.put(data)
        self._watch(outbox)

    def _flush(self, outbox: Outbox, _: int) -> None:
        outbox.flush()
        self._watch(outbox)

    def _finish(self, outbox: Outbox) -> None:
        """Close a channel as soon as everything has been sent."""
        outbox.is_finished = True
        self._watch(outbox)

    def _watch(self, outbox: Outbox) -> None:
        """Learn when a channel takes more, as long as bytes are kept for it."""
        if outbox.is_closed:
            return
        is_watched = outbox.socket in self._selector.get_map()
        if outbox.is_full and not is_watched:
            self._selector.register(outbox.socket, selectors.EVENT_WRITE, partial(self._flush, outbox))
        elif is_watched and not outbox.is_full:
            self._selector.unregister(outbox.socket)
        if outbox.is_finished and not outbox.is_full:
            outbox.close()

    def _end(self, number: int, exit_code: int | None) -> None:
        remote = self._remote.pop(number)
        remote.copies.close()
        self._finish(remote.outbox)
        with self._changed:
            self._exit_codes[number] = exit_code
            self._changed.notify_all()

    def _lose(self, host: Host, why: str) -> None:
        """Report a host that is gone as the reason for which all its ranks have ended."""
        self._selector.unregister(host.connection)
        with self._changed:
            host.lose(why)
            self._changed.notify_all()
        for number, remote in list(self._remote.items()):
            if remote.host is host:
                remote.copies.note(host.last_words)
                self._end(number, None)
        host.connection.close()
