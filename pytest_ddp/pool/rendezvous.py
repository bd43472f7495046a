"""Where ranks find each other: one TCPStore in the controller, and a name of its own for every group.

The store sits on a port that the system chooses, so runs side by side never clash; it lives in the controller, so no
rank takes it along when it dies; and it is never in a process that forks, because its thread's locks would be copied.
"""

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed import TCPStore

_HOST = "127.0.0.1"


@dataclass
class Rendezvous:
    """The controller's store; opened on first use because it needs torch."""

    _store: "TCPStore | None" = None
    _names: "Iterator[int]" = field(default_factory=itertools.count)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the store."""
        from torch.distributed import TCPStore  # noqa: PLC0415  imports torch: only once ranks are wanted

        if self._store is None:
            self._store = TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
        return _HOST, self._store.port

    def new_group(self) -> str:
        """Return a name that no group has had."""
        return f"group{next(self._names)}"
