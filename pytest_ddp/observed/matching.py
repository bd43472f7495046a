"""Whether the operations of two ranks that meet are one and the same."""

from pytest_ddp.observed.notice import ANYONE, Notice

# What every rank of a group must say alike. Where each rank brings or takes a part of its own, parts may differ.
_ALIKE = {
    "all_reduce": ("reduction", "dtype", "shapes"),
    "all_reduce_coalesced": ("reduction", "dtype", "shapes"),
    "broadcast": ("root", "dtype", "shapes"),
    "reduce": ("root", "reduction", "dtype", "shapes"),
    "all_gather_into_tensor": ("dtype", "shapes"),
    "all_gather_into_tensor_coalesced": ("dtype", "shapes"),
    "all_gather_coalesced": ("dtype", "shapes"),
    "all_gather": ("dtype",),
    "gather": ("root", "dtype"),
    "scatter": ("root", "dtype"),
    "reduce_scatter": ("reduction", "dtype", "shapes"),
    "reduce_scatter_tensor": ("reduction", "dtype", "shapes"),
    "reduce_scatter_tensor_coalesced": ("reduction", "dtype", "shapes"),
    "all_to_all": ("dtype",),
    "all_to_all_single": ("dtype",),
}
_WORDS = {"root": "root", "reduction": "reduction", "dtype": "dtype", "shapes": "shape", "elements": "size"}
_OPERATION = "operation"


def differences(mine: Notice, theirs: Notice) -> list[str]:
    """Return in which words two operations that meet differ though they must not; nothing when they fit."""
    if mine.peer is not None or theirs.peer is not None:
        return _differences_of_messages(mine, theirs)
    if mine.op != theirs.op:
        return [_OPERATION]
    differ = _differing(mine, theirs, _ALIKE.get(mine.op, ()))
    return differ or ([] if _fits(mine, theirs) and _fits(theirs, mine) else ["size"])


def _fits(giver: Notice, taker: Notice) -> bool:
    """Whether a rank gives another one as many numbers as that one takes from it."""
    here, there = giver.ranks.index(giver.rank), giver.ranks.index(taker.rank)
    if there >= len(giver.given) or here >= len(taker.taken):
        return True  # one of them gives or takes nothing, or does not say how much
    return giver.given[there] == taker.taken[here]


def _differences_of_messages(mine: Notice, theirs: Notice) -> list[str]:
    """A message may be received in another shape, but not in another dtype or size."""
    if ANYONE in {mine.peer, theirs.peer} or mine.loose or theirs.loose:
        return []
    return _differing(mine, theirs, ("dtype", "elements"))


def _differing(mine: Notice, theirs: Notice, fields: tuple[str, ...]) -> list[str]:
    return [_WORDS[field] for field in fields if getattr(mine, field) != getattr(theirs, field)]


def mismatch(mine: Notice, theirs: Notice) -> str | None:
    """Say how the operation of a rank does not fit the one that another rank has entered; None when it does."""
    differ = differences(mine, theirs)
    if not differ:
        return None
    if mine.peer is not None:
        rule = f"a send and its receive must agree in {' and '.join(differ)}"
    elif differ == [_OPERATION]:
        rule = "all ranks of a group must call the same collectives in the same order"
    else:
        rule = f"all ranks must call it with the same {' and '.join(differ)}"
    return f"rank {mine.rank} calls {mine}, where rank {theirs.rank} called {theirs}; {rule}"
