"""What the other ranks have recorded, as far as this rank has not entered it yet."""

from collections.abc import Iterator

from pytest_ddp.operations.fingerprint import Fingerprint, Key
from pytest_ddp.operations.wait_graph import Position, need_of
from pytest_ddp.planning.world import rank_list
from pytest_ddp.protocol.flight_recorder import Reader, Recorder

_REMEMBERED = 64  # of our own records: ranks that do the same are seldom further apart


class Peers:
    """Reads the flight recorder for the rank that writes to `recorder`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._rank = recorder, recorder.rank
        self._readers: dict[int, Reader] = {}
        self._reported: set[str] = set()
        self._ours: dict[int, bytes] = {}
        self._theirs: dict[tuple[int, Key], Fingerprint] = {}

    def matching(self, fingerprint: Fingerprint, index: int, data: bytes) -> Iterator[Fingerprint]:
        """Yield the operations of other ranks with the key of this one of ours, which was recorded as `data`.

        A rank that does the same records the same: such records are not even decoded.
        """
        if fingerprint.is_same_on_all_ranks:
            self._ours[index] = data
        self._ours.pop(index - _REMEMBERED, None)
        for rank in fingerprint.others:
            reader = self._reader(rank)
            while (ours := self._ours.get(reader.next)) is not None and reader.pass_over(ours):
                pass
            if reader.next <= index or not fingerprint.is_same_on_all_ranks:
                self._read(reader)
            theirs = self._theirs.pop((rank, fingerprint.key), None) if self._theirs else None
            if theirs is not None:
                yield theirs

    def unmatched_operations(self) -> list[str]:
        """Return the operations of this rank that lack other ranks, in words, oldest first, each only once.

        Operations that block are over, so they lacked nobody.
        """
        ours = self._position(self._rank)
        begun = [fingerprint for fingerprint in ours.entered if fingerprint.asynchronous]
        others = {other for fingerprint in begun for other in fingerprint.ranks if other != self._rank}
        positions = {self._rank: ours} | {other: self._position(other) for other in others}
        needs = [need for fingerprint in begun if (need := need_of(fingerprint, positions)).absent]
        found = [f"{need.of}, in which {rank_list(need.absent)} took no part" for need in needs]
        new = [text for text in found if text not in self._reported]
        self._reported.update(new)
        return new

    def _position(self, rank: int) -> Position:
        reader = self._recorder.reader(rank)
        found = [Fingerprint.decode(data, rank) for _, data in reader.new()]
        return Position.of(rank, found, missed=reader.missed)

    def _reader(self, rank: int) -> Reader:
        if rank not in self._readers:
            self._readers[rank] = self._recorder.reader(rank)
        return self._readers[rank]

    def _read(self, reader: Reader) -> None:
        for _, data in reader.new():
            theirs = Fingerprint.decode(data, reader.rank)
            if theirs is not None and self._rank in theirs.others:
                self._theirs[reader.rank, theirs.key] = theirs
