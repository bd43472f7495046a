"""What of an operation is posted for the other ranks."""

from math import prod

import torch.distributed as dist

from pytest_ddp.observed.entry import Entry
from pytest_ddp.observed.notice import ANYONE, RECV, Notice, shapes_text, source_text
from pytest_ddp.observed.parts import given, taken


def notice_of(entry: Entry, rank: int, *, loose: bool = False) -> Notice:
    """Return the notice of an operation that `rank` enters; `loose` as in `Notice`."""
    return Notice(
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
