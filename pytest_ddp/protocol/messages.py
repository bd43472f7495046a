"""What the controller and a rank say to each other, and how it travels.

A message is a frozen dataclass; on the wire it is two lengths, a JSON header and a raw body. Nothing is unpickled
here, so a rank that runs hostile code can send wrong answers but cannot run anything in the controller.
"""

import json
import signal
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pytest_ddp.errors import ProtocolError

# Asks a rank for its Python stacks; Windows, where there are no ranks, has no such signal.
DUMP_SIGNAL: int = getattr(signal, "SIGRTMIN", getattr(signal, "SIGUSR1", 0))
_LENGTHS = struct.Struct(">IQ")
_to_json, _from_json = json.JSONEncoder().encode, json.JSONDecoder().decode  # a test may replace json.dumps and forget
HEADER_LIMIT = 16 * 2**20
BODY_LIMIT = 4 * 2**30


@dataclass(frozen=True)
class Launch:
    """First message to a new rank: who it is, where it lives, and which `host` ("module:function") it runs under."""

    rank: int
    sys_path: list[str]
    cwd: str
    env: dict[str, str]
    store: tuple[str, int]
    capture: bool = True
    host: str | None = None
    body: bytes = b""


@dataclass(frozen=True)
class Ready:
    """A rank waits for its first run."""


@dataclass(frozen=True)
class Run:
    """Run `target` ("module:function") with `body`, in the group named `group`; a new name means a fresh group.

    On CUDA, `gpus` says for every rank which device is its own. With `observe`, the group is an observed one.
    """

    number: int
    target: str
    group: str
    size: int
    backend: str
    device: str
    group_timeout: float
    gpus: list[int]
    observe: bool = False
    body: bytes = b""


@dataclass(frozen=True)
class Answer:
    """What became of run `number`: `outcome` is returned, raised or skipped; number -1 means the rank did not start."""

    number: int
    outcome: str
    seconds: float = 0.0
    kind: str = ""
    message: str = ""
    traceback: str = ""
    body: bytes = b""


@dataclass(frozen=True)
class Raising:
    """The run at hand has ended by an exception; the answer that tells of it is being made, which may take a while."""


@dataclass(frozen=True)
class GetTimeline:
    """Answer, as run `number`, with what you have communicated in this group, as text."""

    number: int


@dataclass(frozen=True)
class Debugging:
    """A debugger on the rank takes the terminal, or gives it back: until then its run has no deadline."""

    entered: bool


@dataclass(frozen=True)
class Disconnect:
    """Break the connections of your process groups: other ranks wait for you in vain."""


@dataclass(frozen=True)
class Close:
    """Finish: tear down what lives on the rank, then leave."""


Message: TypeAlias = Launch | Ready | Run | Answer | Raising | GetTimeline | Debugging | Disconnect | Close
_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Launch, Ready, Run, Answer, Raising, GetTimeline, Debugging, Disconnect, Close)
}


def encode(message: Message) -> bytes:
    """Return the message as bytes."""
    plain: dict[str, Any] = dict(vars(message))
    body: bytes = plain.pop("body", b"")
    head = _to_json([type(message).__name__, plain]).encode()
    return _LENGTHS.pack(len(head), len(body)) + head + body


def decode(head: bytes, body: bytes) -> Message:
    """Return the message that `encode` made; raise ProtocolError for anything else."""
    try:
        name, plain = _from_json(head.decode())
        kind = _KINDS[name]
        if hasattr(kind, "body"):
            plain["body"] = body
        return kind(**plain)
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"not a message of pytest-ddp: {head[:200]!r} ({error})") from error


@dataclass
class Decoder:
    """Makes messages from bytes as they come in, in pieces of any size."""

    limit: int = BODY_LIMIT
    _buffer: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add bytes; yield every message that is complete. Raise ProtocolError for lengths over the limits."""
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            head_length, body_length = _LENGTHS.unpack_from(self._buffer)
            if head_length > HEADER_LIMIT or body_length > self.limit:
                raise ProtocolError(
                    f"a rank announced {head_length} + {body_length} bytes; "
                    f"at most {HEADER_LIMIT} + {self.limit} may come"
                )
            body_at = _LENGTHS.size + head_length
            end = body_at + body_length
            if len(self._buffer) < end:
                return
            message = decode(bytes(self._buffer[_LENGTHS.size : body_at]), bytes(self._buffer[body_at:end]))
            del self._buffer[:end]
            yield message


def receive(channel: socket.socket) -> Message | None:
    """Wait for one message; None when the other side is gone."""
    lengths = _read(channel, _LENGTHS.size)
    if lengths is None:
        return None
    head_length, body_length = _LENGTHS.unpack(lengths)
    head, body = _read(channel, head_length), _read(channel, body_length)
    return None if head is None or body is None else decode(head, body)


def _read(channel: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        piece = channel.recv(min(length - len(data), 2**20))
        if not piece:
            return None
        data += piece
    return bytes(data)
