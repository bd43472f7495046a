"""What a rank lets the others know of an operation before it enters it."""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import groupby
from math import prod
from typing import NamedTuple, TypeAlias

from pytest_ddp.observed.events import Entry, Shapes
from pytest_ddp.planning.world import format_ranks, parse_ranks

# How many numbers an operation moves from each rank of its group to each other one, where that may differ.

_LONGEST = 150  # characters
_MOST = 100_000

Parts = tuple[int, ...]


def given(entry: Entry) -> Parts:
    """Return how many numbers this rank gives to each rank, () where nothing is to be compared."""
    size = len(entry.ranks)
    match entry.op:
        case "all_gather" | "gather":
            return _sizes(entry.shapes) * size
        case "scatter":
            return _sizes(entry.shapes) if entry.outputs else ()
        case "all_to_all":
            return _sizes(entry.shapes)
        case "all_to_all_single":
            return _rows(entry.shapes, entry.splits[0], size)
    return ()


def taken(entry: Entry) -> Parts:
    """Return how many numbers this rank takes from each rank; () where nothing is to be compared."""
    size = len(entry.ranks)
    match entry.op:
        case "all_gather" | "gather" | "all_to_all":
            return _sizes(entry.outputs)
        case "scatter":
            return _sizes(entry.outputs or entry.shapes) * size
        case "all_to_all_single":
            return _rows(entry.outputs, entry.splits[1], size)
    return ()


def _sizes(shapes: Shapes) -> Parts:
    return tuple(prod(shape) for shape in shapes)


def _rows(shapes: Shapes, splits: Sequence[int], size: int) -> Parts:
    """Return the sizes of the parts that the first dimension of a tensor is split into, evenly for no splits."""
    (shape,) = shapes
    rows, row = (shape[0], prod(shape[1:])) if shape else (1, 1)
    return tuple(split * row for split in splits) or (rows // size * row,) * size


def parts_text(parts: Parts) -> str:
    """Return parts as text such as "4x3,7"; "" for more of them than a notice has room for."""
    runs = [(size, len(list(run))) for size, run in groupby(parts)]
    text = ",".join(f"{size}x{count}" for size, count in runs)
    return text if len(text) <= _LONGEST else ""


def parts_of(text: str) -> Parts:
    """Return what `parts_text` wrote; raise ValueError for anything else."""
    runs = (part.split("x") for part in filter(None, text.split(",")))
    return tuple(int(size) for size, count in runs for _ in range(min(int(count), _MOST)))


ANYONE = -1  # the peer of a receive that takes whatever comes
SEND, RECV = "send", "recv"
_SHAPES_SHOWN = 3
_TEXT = 200  # characters of a text that another one can be told from by its digest
_APART = "\x1f"
_FIELDS = 17

Meeting: TypeAlias = tuple[str, ...]


class Fingerprint(NamedTuple):
    """One operation of one rank; ranks are numbered as in the default group.

    Attributes:
        op: the operation, as `torch.distributed` calls it.
        group: the name of its process group.
        ranks: the ranks of that group, in its order.
        number: the number of a collective in its group, or of a send or receive between two ranks with one tag, from 1.
        rank: who posted it.
        peer: the other rank of a send or receive; None for collectives.
        tag: the tag of a send or receive.
        root: the rank that a collective comes from or goes to, if it has one.
        reduction: how values are combined, if they are.
        dtype: of the tensors, "" if there are none.
        shapes: of the tensors, as `shapes_text` writes them.
        elements: how many numbers they hold together.
        given: how many of them this rank gives to each rank, where these may differ (see `parts`).
        taken: how many numbers it takes from each rank.
        source: FILE:LINE of the caller.
        asynchronous: whether the caller may go on before it is complete.
        loose: whether a receive comes after one from anyone, which may have taken what its number stands for.
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
    given: Parts = ()
    taken: Parts = ()
    source: str = ""
    asynchronous: bool = False
    loose: bool = False
    default: bool = True

    @property
    def line(self) -> Meeting:
        """What its number counts: the collectives of a group, or what goes from one rank to another with one tag."""
        if self.peer is None:
            return (self.group,)
        sender, receiver = (self.rank, self.peer) if self.op == SEND else (self.peer, self.rank)
        return self.group, str(sender), str(receiver), str(self.tag)

    @property
    def meeting(self) -> Meeting:
        """Equal for the operations of different ranks that become one."""
        return *self.line, str(self.number)

    @property
    def is_same_everywhere(self) -> bool:
        """Whether what fits it is equal to it: a collective in which no rank brings or takes a part of its own."""
        return self.peer is None and not (self.given or self.taken)

    @property
    def receiver(self) -> int | None:
        """The rank that a message goes to; None for collectives."""
        return self.peer if self.op == SEND else None if self.peer is None else self.rank

    @property
    def others(self) -> tuple[int, ...]:
        """The ranks that it may need."""
        if self.peer is not None and self.peer != ANYONE:
            return (self.peer,)
        return tuple(rank for rank in self.ranks if rank != self.rank)

    def __str__(self) -> str:
        words = [self.op, f"#{self.number}"] if self.peer is None else [self.op]
        words += [f"{self.dtype}{self.shapes}"] if self.dtype else []
        words += [f"({self.reduction})"] if self.reduction not in {"", "SUM"} else []
        words += [f"with root {self.root}"] if self.root is not None else []
        words += [_peer_words(self)] if self.peer is not None else []
        words += [] if self.default else [f"in group {self.group!r} of ranks {', '.join(map(str, self.ranks))}"]
        return " ".join(words) + (f" at {self.source}" if self.source else "")

    def encode(self) -> bytes:
        """Return it as bytes, without its rank: ranks that do the same post the same."""
        who = (self.op, self.group, format_ranks(self.ranks), self.number, _optional(self.peer), self.tag)
        what = (_optional(self.root), self.reduction, self.dtype, self.shapes, self.elements)
        parts = (parts_text(self.given), parts_text(self.taken))
        how = (self.source, *("1" if flag else "" for flag in (self.asynchronous, self.loose, self.default)))
        return _APART.join(map(str, (*who, *what, *parts, *how))).encode(errors="replace")

    @classmethod
    def decode(cls, data: bytes, rank: int) -> "Fingerprint | None":
        """Return what `encode` made bytes of on that rank; None for anything else."""
        parts = data.decode(errors="replace").split(_APART)
        if len(parts) != _FIELDS:
            return None
        op, group, ranks, number, peer, tag, root, reduction, dtype, shapes, elements, given, taken, *rest = parts
        try:
            return cls(
                op=op,
                group=group,
                ranks=parse_ranks(ranks),
                number=int(number),
                rank=rank,
                peer=int(peer) if peer else None,
                tag=int(tag),
                root=int(root) if root else None,
                reduction=reduction,
                dtype=dtype,
                shapes=shapes,
                elements=int(elements),
                given=parts_of(given),
                taken=parts_of(taken),
                source=rest[0],
                asynchronous=bool(rest[1]),
                loose=bool(rest[2]),
                default=bool(rest[3]),
            )
        except ValueError:
            return None


def _optional(number: int | None) -> str:
    return "" if number is None else str(number)


def _peer_words(notice: Fingerprint) -> str:
    tag = f" with tag {notice.tag}" if notice.tag else ""
    if notice.peer == ANYONE:
        return f"from any rank{tag}"
    return f"{'to' if notice.op == SEND else 'from'} rank {notice.peer}{tag}"


def shapes_text(shapes: Sequence[Sequence[int]]) -> str:
    """Return shapes as text, equal exactly where they are (long lists are shortened and get a digest)."""
    text = " + ".join(str(list(shape)) for shape in shapes)
    if len(text) <= _TEXT and len(shapes) <= _SHAPES_SHOWN:
        return text
    shown = " + ".join(str(list(shape)) for shape in shapes[:_SHAPES_SHOWN])[:_TEXT]
    return f"{shown} + ... ({len(shapes)} tensors, {blake2b(text.encode(), digest_size=4).hexdigest()})"


def source_text(source: str) -> str:
    """Return FILE:LINE with no more of the file's path than a notice has room for."""
    return source if len(source) <= _TEXT else f"...{source[-_TEXT:]}"


def notice_of(entry: Entry, rank: int, *, loose: bool = False) -> Fingerprint:
    """Return the notice of an operation that `rank` enters; `loose` as in `Fingerprint`."""
    import torch.distributed as dist  # noqa: PLC0415  the controller reads notices without torch

    return Fingerprint(
        op=entry.op,
        group=entry.group,
        ranks=entry.ranks,
        number=entry.sequence,
        rank=rank,
        peer=ANYONE if entry.op == RECV and entry.peer is None else entry.peer,
        tag=entry.tag,
        root=entry.root,
        reduction=entry.reduce_op,
        dtype=entry.dtype,
        shapes=shapes_text(entry.shapes),
        elements=sum(map(prod, entry.shapes)),
        given=given(entry),
        taken=taken(entry),
        source=source_text(entry.line),
        asynchronous=entry.asynchronous,
        loose=loose,
        default=entry.group == getattr(dist.group.WORLD, "group_name", None),
    )
