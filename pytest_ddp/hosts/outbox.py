"""A socket that is written to without waiting: what it does not take yet is kept."""

import contextlib
import socket
from dataclasses import dataclass, field


@dataclass
class Outbox:
    """Bytes on their way into a socket.

    Attributes:
        socket: the socket.
        is_finished: whether nothing more is to come, so that it is to be closed when all is sent.
    """

    socket: socket.socket
    is_finished: bool = False
    _kept: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.socket.setblocking(False)

    @property
    def is_full(self) -> bool:
        """Whether bytes are kept: `flush` must be called once the socket is writable."""
        return bool(self._kept)

    @property
    def is_closed(self) -> bool:
        """Whether the socket is closed."""
        return self.socket.fileno() < 0

    def put(self, data: bytes) -> None:
        """Send bytes, or keep them."""
        self._kept += data
        self.flush()

    def flush(self) -> None:
        """Send what is kept, as far as the socket takes it; forget it if the other end is gone."""
        try:
            while self._kept:
                del self._kept[: self.socket.send(self._kept)]
        except BlockingIOError:
            pass
        except OSError:
            self._kept.clear()

    def close(self) -> None:
        """Send what the socket takes, and close it."""
        self.flush()
        with contextlib.suppress(OSError):
            self.socket.close()
