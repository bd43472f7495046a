"""A TCP connection between the controller and a rank host: authenticated, framed, and not silent for long.

Both sides prove that they know the secret of the run, and neither sends it. What follows is not encrypted: see
`docs/nodes.md`.
"""

import contextlib
import hmac
import secrets
import socket
import struct
import threading
from dataclasses import dataclass, field

from pytest_ddp.errors import LaunchError
from pytest_ddp.hosts.messages import HostMessage, decode, encode
from pytest_ddp.protocol.messages import READ_BYTES, Decoder

_NONCE = 32
_HANDSHAKE_SECONDS = 10.0
# A connection whose other end does not answer, because a cable or a node is gone, ends after so many seconds.
SILENT_SECONDS = 10
_PROBE_SECONDS = 2
_SEND_SECONDS = 60  # until a process that reads nothing counts as gone, though its node answers


class Refused(LaunchError):  # noqa: N818  what happened
    """The other side does not know the secret, or is something else."""


@dataclass
class Connection:
    """Sends and receives messages; several threads may send, one may receive."""

    socket: socket.socket
    _decoder: Decoder = field(default_factory=lambda: Decoder(decode=decode))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_SECONDS, 0))
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):  # the names differ between systems
                self.socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.socket.fileno()

    def send(self, *messages: HostMessage) -> None:
        """Send messages at once; raise OSError if the connection has ended."""
        data = b"".join(map(encode, messages))
        try:
            with self._lock:
                self.socket.sendall(data)
        except OSError:  # a message may have been sent in part: nothing can follow
            self.shut()
            raise

    def receive(self) -> list[HostMessage] | None:
        """Wait for bytes; return the messages that they complete, None if the connection has ended.

        Raises:
            OSError: the other end does not answer any more.
            ProtocolError: it sent something else than messages.
        """
        data = self.socket.recv(READ_BYTES)
        return list(self._decoder.feed(data)) if data else None

    def await_end(self, seconds: float) -> None:
        """Wait until the other side closes the connection, at most so long; ignore what it still sends."""
        self.socket.settimeout(seconds)
        with contextlib.suppress(OSError):
            while self.socket.recv(READ_BYTES):
                pass

    def shut(self) -> None:
        """End the connection, so that both sides read its end."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection and close the socket."""
        self.shut()
        self.socket.close()


_KEEP_ALIVE = {
    "TCP_KEEPIDLE": _PROBE_SECONDS,
    "TCP_KEEPALIVE": _PROBE_SECONDS,
    "TCP_KEEPINTVL": _PROBE_SECONDS,
    "TCP_KEEPCNT": SILENT_SECONDS // _PROBE_SECONDS - 1,
    "TCP_USER_TIMEOUT": SILENT_SECONDS * 1000,
}


def connect(address: tuple[str, int], secret: bytes, seconds: float = _HANDSHAKE_SECONDS) -> Connection:
    """Connect a host to the controller; raise OSError if nothing listens there, Refused if it is not the controller."""
    return _authenticated(socket.create_connection(address, seconds), secret, b"host", b"controller")


def welcome(accepted: socket.socket, secret: bytes) -> Connection:
    """Let a host in; raise OSError or Refused if it is none."""
    return _authenticated(accepted, secret, b"controller", b"host")


def _authenticated(end: socket.socket, secret: bytes, us: bytes, them: bytes) -> Connection:
    try:
        end.settimeout(_HANDSHAKE_SECONDS)
        ours = secrets.token_bytes(_NONCE)
        end.sendall(ours)
        theirs = _exactly(end, _NONCE)
        end.sendall(_proof(secret, us, ours + theirs))
        _check(_exactly(end, _NONCE), _proof(secret, them, theirs + ours))
        return Connection(end)
    except BaseException:
        end.close()
        raise


def _check(found: bytes, right: bytes) -> None:
    if not hmac.compare_digest(found, right):
        raise Refused("the other side of the connection does not know the secret of this run")


def _proof(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, role + nonces, "sha256")


def _exactly(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = end.recv(size - len(data))
        if not part:
            raise Refused("the other side closed the connection before it had proved that it knows the secret")
        data += part
    return data
