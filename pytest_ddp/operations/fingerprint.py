"""The fingerprint of an operation: what other ranks and the controller know of one operation of one rank."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from pytest_ddp.operations.table import SEND
from pytest_ddp.planning.world import format_ranks, parse_ranks

ANY_RANK = -1  # the peer of a receive from any rank
Key: TypeAlias = tuple[str, ...]

_BETWEEN = "\x1f"
_SHAPES_SHOWN = 3
_LONGEST_TEXT = 200  # characters of a text whose rest only its digest stands for
_LONGEST_SIZES = 150
_MOST_SIZES = 100_000


class Fingerprint(NamedTuple):
    """One operation of one rank; ranks are numbered as in the default group.

    Attributes:
        op: the operation, as torch.distributed calls it.
        group, ranks: the name of its process group, and the ranks of that group, in its order.
        number: counts the collectives of the group from 1, or the messages between two ranks with one tag.
        rank: the rank that enters it.
        peer, tag: the other rank of a send or receive, and its tag; the peer of a collective is None.
        root: the rank that a rooted collective starts from or ends at.
        reduction: "SUM", "MAX", ... where something is reduced.
        dtype, shapes, elements: of the tensors; `shapes_text` writes the shapes, and no tensors have the dtype "".
        sends, receives: how many elements this rank sends to or receives from each rank, where that may differ.
        source: FILE:LINE of the caller.
        asynchronous: whether the caller gets a handle to wait for.
        after_any_rank: whether a receive comes after one from any rank, which may have received its message.
        default: whether the group is the default group.
    """

    op: str
    group: str
    ranks: tuple[int, ...]
    number: int
    rank: int
    peer: int | None = None
    tag: int = 0
    root: int | None = None
    reduction: str = ""
    dtype: str = ""
    shapes: str = ""
    elements: int = 0
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()
    source: str = ""
    asynchronous: bool = False
    after_any_rank: bool = False
    default: bool = True

    @property
    def stream(self) -> Key:
        """What `number` counts: the collectives of a group, or the messages from one rank to another with one tag."""
        if self.peer is None:
            return (self.group,)
        sender, receiver = (self.rank, self.peer) if self.op == SEND else (self.peer, self.rank)
        return self.group, str(sender), str(receiver), str(self.tag)

    @property
    def key(self) -> Key:
        """Equal for the operations of different ranks that become one."""
        return *self.stream, str(self.number)

    @property
    def is_same_on_all_ranks(self) -> bool:
        """Whether the operations that match it are equal to it."""
        return self.peer is None and not (self.sends or self.receives)

    @property
    def receiver(self) -> int | None:
        """The rank that a message goes to; None for collectives."""
        return self.peer if self.op == SEND else None if self.peer is None else self.rank

    @property
    def others(self) -> tuple[int, ...]:
        """The other ranks that may have to take part."""
        if self.peer is not None and self.peer != ANY_RANK:
            return (self.peer,)
        return tuple(rank for rank in self.ranks if rank != self.rank)

    def __str__(self) -> str:
        words = [f"{self.op} #{self.number}"]
        words += [f"{self.dtype}{self.shapes}"] if self.dtype else []
        words += [f"({self.reduction})"] if self.reduction not in {"", "SUM"} else []
        words += [f"with root {self.root}"] if self.root is not None else []
        words += [peer_text(self.op, self.peer)] if self.peer is not None else []
        words += [f"with tag {self.tag}"] if self.tag else []
        words += [] if self.default else [f"in group {self.group!r} of ranks {', '.join(map(str, self.ranks))}"]
        return " ".join(words) + (f" at {self.source}" if self.source else "")

    def encode(self) -> bytes:
        """Return it as bytes, without its rank: ranks that do the same record the same."""
        _ = _BETWEEN
        peer, root = "" if self.peer is None else self.peer, "" if self.root is None else self.root
        stream = f"{self.op}{_}{self.group}{_}{format_ranks(self.ranks)}{_}{self.number}{_}{peer}{_}{self.tag}"
        tensors = f"{root}{_}{self.reduction}{_}{self.dtype}{_}{self.shapes}{_}{self.elements}"
        sizes = f"{format_sizes(self.sends)}{_}{format_sizes(self.receives)}"
        flags = f"{self.asynchronous or ''}{_}{self.after_any_rank or ''}{_}{self.default or ''}"
        return f"{stream}{_}{tensors}{_}{sizes}{_}{self.source}{_}{flags}".encode(errors="replace")

    @classmethod
    def decode(cls, data: bytes, rank: int) -> "Fingerprint | None":
        """Return the fingerprint that `encode` made bytes of on that rank; None for anything else."""
        texts = data.decode(errors="replace").split(_BETWEEN)
        try:
            values = [read(text) for read, text in zip(_READERS, texts, strict=True)]
        except ValueError:
            return None
        return cls._make([*values[:4], rank, *values[4:]])

    @property
    def bytes(self) -> int:
        """How many bytes the elements have: a dtype's name has its number of bits, unless it is bool."""
        bits = re.search(r"\d+", self.dtype)
        return self.elements * (int(bits[0]) if bits else 8) // 8


def _optional_of(text: str) -> int | None:
    return int(text) if text else None


def format_sizes(sizes: Sequence[int]) -> str:
    """Return sizes as text such as "4x3,7x1"; "" if it would be too long."""
    if not sizes:
        return ""
    runs = [(size, len(list(run))) for size, run in groupby(sizes)]
    text = ",".join(f"{size}x{count}" for size, count in runs)
    return text if len(text) <= _LONGEST_SIZES else ""


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes that `format_sizes` wrote; raise ValueError for anything else."""
    runs = (part.split("x") for part in filter(None, text.split(",")))
    return tuple(int(size) for size, count in runs for _ in range(min(int(count), _MOST_SIZES)))


_READERS: tuple[Callable[[str], Any], ...] = (
    *(str, str, parse_ranks, int, _optional_of, int, _optional_of, str, str, str, int, parse_sizes, parse_sizes, str),
    *(bool, bool, bool),
)


@dataclass(frozen=True)
class Fingerprints(Sequence[Fingerprint]):
    """Fingerprints of one rank, decoded on first use: only failing tests need them."""

    encoded: tuple[bytes, ...]
    rank: int

    @cached_property
    def _decoded(self) -> tuple[Fingerprint, ...]:
        found = (Fingerprint.decode(data, self.rank) for data in self.encoded)
        return tuple(fingerprint for fingerprint in found if fingerprint is not None)

    def __len__(self) -> int:
        return len(self._decoded)

    def __getitem__(self, index: Any) -> Any:
        return self._decoded[index]


def peer_text(op: str, peer: int | None) -> str:
    """Say which rank a message goes to or comes from; None, too, stands for any."""
    return f"{'to' if op == SEND else 'from'} {'any rank' if peer in {None, ANY_RANK} else f'rank {peer}'}"


def shapes_text(shapes: Sequence[Sequence[int]]) -> str:
    """Return shapes as text, equal exactly where they are (long lists are shortened and get a digest)."""
    text = " + ".join([str(list(shape)) for shape in shapes])
    if len(text) <= _LONGEST_TEXT and len(shapes) <= _SHAPES_SHOWN:
        return text
    shown = " + ".join(str(list(shape)) for shape in shapes[:_SHAPES_SHOWN])[:_LONGEST_TEXT]
    return f"{shown} + ... ({len(shapes)} tensors, {blake2b(text.encode(), digest_size=4).hexdigest()})"


def source_text(source: str) -> str:
    """Return FILE:LINE with no more of the file's path than a fingerprint has room for."""
    return source if len(source) <= _LONGEST_TEXT else f"...{source[-_LONGEST_TEXT:]}"
