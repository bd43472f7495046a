"""Where the ranks of a process group meet: a store in the controller, and a free port for stores of the test's own."""

import itertools
import socket
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore

HOST = "127.0.0.1"


@dataclass
class Rendezvous:
    """The TCPStore through which ranks form process groups, and a new name for each group.

    The store lives in the controller, so that it outlives every rank. A fork server must not have it, because a fork
    copies the locks of its thread. The system chooses its port, so that parallel runs never clash.

    `host` is the address of this machine at which all ranks reach the store.
    """

    host: str = HOST
    _store: "TCPStore | None" = None
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the store, which opens when this is first read."""
        from torch.distributed import TCPStore  # noqa: PLC0415  the controller imports torch only to start ranks

        if self._store is None:
            self._store = TCPStore(self.host, 0, is_master=True, wait_for_workers=False)
        return self.host, self._store.port

    def new_group(self) -> str:
        """Return a name that no group has had."""
        return f"group{next(self._numbers)}"


def reserve_port(holder: object) -> tuple[int, Callable[[], object]]:
    """Return a free TCP port, and a function that releases it; until then, the system gives it to nobody else.

    It is released with `holder` at the latest. A server that sets SO_REUSEADDR, as TCPStore does, can listen on it.
    """
    reserved = socket.socket()
    release = weakref.finalize(holder, reserved.close)
    reserved.bind(("", 0))
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not before: two runs could reserve the same port
    port: int = reserved.getsockname()[1]
    return port, release
