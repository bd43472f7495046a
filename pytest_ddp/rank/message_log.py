"""The messages that this rank sent or received in a test, and which of them are not finished.

A message is unfinished if the other rank never received or sent it, if it was received in another size or dtype, or if
nobody waited for its handle.
"""

from dataclasses import dataclass, field

from pytest_ddp.operations.fingerprint import Fingerprint
from pytest_ddp.operations.matching import broken_rule
from pytest_ddp.operations.table import SEND
from pytest_ddp.operations.wait_graph import Position, need_of
from pytest_ddp.planning.world import rank_list
from pytest_ddp.protocol.flight_recorder import Reader, Recorder

_MOST_MESSAGES = 256  # of a test; further ones are not looked at, so that the end of a test takes no time


@dataclass
class MessageLog:
    """Messages by their indices in the flight recorder.

    Attributes:
        is_on: whether messages are noted: only while the ranks of the default group are those of the run.
    """

    is_on: bool = False
    _messages: dict[int, Fingerprint] = field(default_factory=dict)
    _unawaited: set[int] = field(default_factory=set)

    def begin(self, *, is_on: bool) -> None:
        """Forget all messages."""
        self.is_on = is_on
        self._messages.clear()
        self._unawaited.clear()

    def add(self, index: int, message: Fingerprint, *, has_handle: bool) -> None:
        """Note a message that is about to be issued."""
        if self.is_on and len(self._messages) < _MOST_MESSAGES:
            self._messages[index] = message
            if has_handle:
                self._unawaited.add(index)

    def waited_for(self, index: int) -> None:
        """Note that somebody waits for a handle."""
        self._unawaited.discard(index)

    def unfinished(self, recorder: Recorder) -> list[str]:
        """Describe the messages that are unfinished, if no other rank sends or receives any more."""
        if not self._messages:
            return []
        ranks = {rank for message in self._messages.values() for rank in message.ranks}
        positions = {rank: _position(recorder.reader(rank)) for rank in ranks}
        return [text for index in self._messages for text in self._faults(index, positions)]

    def _faults(self, index: int, positions: dict[int, Position]) -> list[str]:
        message = self._messages[index]
        need = need_of(message, positions)
        if message.asynchronous and need.absent:  # a message that blocks is over, so it lacked nobody
            return [f"{message}, which {rank_list(need.absent)} never {'received' if message.op == SEND else 'sent'}"]
        found = [f"{message}, which was never waited for"] if index in self._unawaited else []
        if message.op == SEND:
            rules = ((theirs, broken_rule(message, theirs)) for theirs in need.different.values())
            found += [f"{message}, where rank {theirs.rank} called {theirs}; {rule}" for theirs, rule in rules]
        return found


def _position(reader: Reader) -> Position:
    decoded = [Fingerprint.decode(record, reader.rank) for _, record in reader.new()]
    all_known = reader.is_there and not reader.missed and all(decoded)
    return Position(reader.rank, tuple(filter(None, decoded)), all_known=all_known)
