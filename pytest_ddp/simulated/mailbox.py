"""Messages between simulated ranks: which send and which receive become one.

As in gloo, a message is sent when its receive is there: a send that nobody receives waits for ever. A receive takes the
oldest message of its sender, tag and group; a receive from any rank takes the oldest message of any sender.
"""

from collections import defaultdict
from collections.abc import Iterator

from pytest_ddp.operations.table import SEND
from pytest_ddp.simulated.operation import Launch

Place = tuple[str, int | None, int]


class Mailbox:
    """The sends and receives that are not matched yet, in the order of their launches."""

    def __init__(self) -> None:
        self._sends: dict[Place, list[Launch]] = defaultdict(list)
        self._receives: dict[Place, list[Launch]] = defaultdict(list)

    def match(self, launch: Launch) -> tuple[Launch, Launch] | None:
        """Return a send and its receive, one of which is this launch; keep the launch if there is no match yet."""
        call = launch.call
        is_send = call.operation.name == SEND
        place = (call.group, call.peer if is_send else launch.rank, call.tag)
        mine, theirs = (self._sends, self._receives) if is_send else (self._receives, self._sends)
        for other in theirs[place]:
            sent, received = (launch, other) if is_send else (other, launch)
            if received.call.peer in {None, sent.rank}:
                theirs[place].remove(other)
                return sent, received
        mine[place].append(launch)
        return None

    def __iter__(self) -> Iterator[Launch]:
        for kept in (self._sends, self._receives):
            for launches in kept.values():
                yield from launches

    def clear(self) -> None:
        """Forget all of them."""
        self._sends.clear()
        self._receives.clear()
