"""What the other ranks have posted, as far as this rank has not met it yet."""

from collections.abc import Iterator

from pytest_ddp.observed.board import Area
from pytest_ddp.observed.notice import Meeting, Notice


class Others:
    """Reads the board for one rank."""

    def __init__(self, fd: int, rank: int, key: int) -> None:
        self._fd, self._rank, self._key = fd, rank, key
        self._areas: dict[int, Area] = {}
        self._texts: dict[int, dict[int, bytes]] = {}
        self._notices: dict[tuple[int, Meeting], Notice] = {}

    def meet(self, notice: Notice, index: int, text: bytes) -> Iterator[Notice]:
        """Yield the operations of other ranks that have come to meet this one of ours, which has that index and text.

        Ranks that do the same post the same: such a notice is not even looked into.
        """
        for rank in notice.others:
            texts = self._read(rank)
            if texts.get(index) == text and notice.is_same_everywhere:
                del texts[index]
                continue
            self._look_into(rank, texts)
            theirs = self._notices.pop((rank, notice.meeting), None)
            if theirs is not None:
                yield theirs

    def _read(self, rank: int) -> dict[int, bytes]:
        if rank not in self._areas:
            self._areas[rank], self._texts[rank] = Area(self._fd, rank, self._key), {}
        self._texts[rank].update(self._areas[rank].new())
        return self._texts[rank]

    def _look_into(self, rank: int, texts: dict[int, bytes]) -> None:
        for text in texts.values():
            theirs = Notice.decode(text, rank)
            if theirs is not None and self._rank in theirs.others:
                self._notices[rank, theirs.meeting] = theirs
        texts.clear()
