"""The messages between the controller and a rank, and their encoding.

A message is a frozen dataclass. It is sent as two lengths, a header in JSON and a body of raw bytes. Nothing here is
unpickled: a rank with hostile code can send wrong answers, but cannot run code in the controller.
"""

import json
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

from pytest_ddp.errors import ProtocolError
from pytest_ddp.planning.world import World

# Makes a rank write its Python stacks. Windows, which runs no ranks, has no such signal.
DUMP_SIGNAL: int = getattr(signal, "SIGRTMIN", getattr(signal, "SIGUSR1", 0))
_LENGTHS = struct.Struct(">IQ")
# Not `json.dumps`: a test may replace that and not put it back.
_to_json, from_json = json.JSONEncoder(default=vars).encode, json.JSONDecoder().decode
HEADER_LIMIT = 16 * 2**20
BODY_LIMIT = 4 * 2**30
READ_BYTES = 2**16  # a larger buffer takes longer to allocate than most messages take to read


@dataclass(frozen=True)
class Launch:
    """The first message to a new rank: its number, its environment, the store, and the `host` in which it serves."""

    rank: int
    sys_path: list[str]
    cwd: str
    env: dict[str, str]
    store: tuple[str, int]
    capture: bool = True
    host: str | None = None
    body: bytes = b""


@dataclass(frozen=True)
class Run:
    """Call `target` ("module:function") with `body` in the group named `group`; a new name means a fresh group.

    If the world has no group, the test makes its own, if need be through a store on `master_port`. If `connections` is
    the name of the group that the rank is in, the fresh group takes over its connections.
    """

    number: int
    target: str
    group: str
    world: World
    group_timeout: float
    master_port: int = 0
    body: bytes = b""
    connections: str = ""


@dataclass(frozen=True)
class Answer:
    """The end of run `number`: `outcome` is returned, raised or skipped. Number -1: whether the rank has started.

    `settled` says that nothing of the run can go on in the rank's group, which is the only one.
    """

    number: int
    outcome: str
    seconds: float = 0.0
    kind: str = ""
    message: str = ""
    traceback: str = ""
    body: bytes = b""
    settled: bool = False


@dataclass(frozen=True)
class SimulatedRun:
    """The head of the body of an `Answer` for simulated ranks; an `Answer` per rank follows, its number is the rank.

    `schedule` are the choices of the run as text. `outcome` may be "stopped" (another rank failed) or "killed" too.
    """

    schedule: str = ""


@dataclass(frozen=True)
class Raising:
    """The run raised an exception. Its answer follows when the traceback is formatted, which may take a while."""


@dataclass(frozen=True)
class GetTimeline:
    """Answer, as run `number`, with the timeline of this rank's operations in the group, as text."""

    number: int


@dataclass(frozen=True)
class Debugging:
    """A debugger on the rank takes the terminal, or gives it back. In between, the run has no deadline."""

    entered: bool


@dataclass(frozen=True)
class Disconnect:
    """Break the connections of the rank's process groups: other ranks wait for it in vain."""


@dataclass(frozen=True)
class Close:
    """Finish all fixtures, then end."""


Message: TypeAlias = Launch | Run | Answer | SimulatedRun | Raising | GetTimeline | Debugging | Disconnect | Close
_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    """Return the message as bytes."""
    return frame(message)


def frame(message: Any) -> bytes:
    """Return a dataclass as two lengths, a header in JSON, and the bytes of its field `body`, if it has one."""
    plain: dict[str, Any] = dict(vars(message))
    body: bytes = plain.pop("body", b"")
    head = _to_json([type(message).__name__, plain]).encode()
    return _LENGTHS.pack(len(head), len(body)) + head + body


def decode(head: bytes, body: bytes) -> Message:
    """Return the message that `encode` made; raise ProtocolError for anything else."""
    try:
        name, plain = from_json(head.decode())
        kind = _KINDS[name]
        if hasattr(kind, "body"):
            plain["body"] = body
        if "world" in plain:
            world = plain["world"]
            plain["world"] = World(**world | {name: tuple(world[name]) for name in ("gpus", "nodes")})
        return kind(**plain)
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"not a message of pytest-ddp: {head[:200]!r} ({error})") from error


@dataclass
class Decoder:
    """Decodes messages from bytes that arrive in pieces of any size; `decode` makes one of its header and its body."""

    limit: int = BODY_LIMIT
    decode: Callable[[bytes, bytes], Any] = decode
    _buffer: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[Any]:
        """Add bytes; yield the messages that are complete. Raise ProtocolError for a length over its limit."""
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            head_length, body_length = _LENGTHS.unpack_from(self._buffer)
            if head_length > HEADER_LIMIT or body_length > self.limit:
                limits = f"at most {HEADER_LIMIT} + {self.limit} are allowed"
                raise ProtocolError(f"a rank announced {head_length} + {body_length} bytes; {limits}")
            body_at = _LENGTHS.size + head_length
            end = body_at + body_length
            if len(self._buffer) < end:
                return
            message = self.decode(bytes(self._buffer[_LENGTHS.size : body_at]), bytes(self._buffer[body_at:end]))
            del self._buffer[:end]
            yield message


@dataclass
class Inbox:
    """The messages that arrive on a socket, one after the other."""

    channel: socket.socket
    _decoder: Decoder = field(default_factory=Decoder)
    _messages: deque[Message] = field(default_factory=deque)

    def receive(self) -> Message | None:
        """Wait for one message; return None if the other side is gone."""
        while not self._messages:
            data = self.channel.recv(READ_BYTES)
            if not data:
                return None
            self._messages.extend(self._decoder.feed(data))
        return self._messages.popleft()
