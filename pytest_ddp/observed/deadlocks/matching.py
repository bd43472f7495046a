"""Whether the operations of two ranks that meet are one and the same."""

from pytest_ddp.observed.fingerprint import ANYONE, Fingerprint, Parts

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


def differences(mine: Fingerprint, theirs: Fingerprint) -> list[str]:
    """Return in which words two operations that meet differ though they must not; nothing when they fit."""
    if mine.peer is not None or theirs.peer is not None:
        return _differences_of_messages(mine, theirs)
    if mine.op != theirs.op:
        return [_OPERATION]
    differ = _differing(mine, theirs, _ALIKE.get(mine.op, ()))
    return differ or (["size"] if _ill_fitting(mine, theirs) else [])


def _ill_fitting(mine: Fingerprint, theirs: Fingerprint) -> str:
    """Say in which direction a rank gives another one more or less than that one takes, if in any."""
    for giver, taker in ((mine, theirs), (theirs, mine)):
        gives, takes = _part(giver.given, taker.rank, mine.ranks), _part(taker.taken, giver.rank, mine.ranks)
        if None not in {gives, takes} and gives != takes:
            return f"rank {giver.rank} gives {gives} elements to rank {taker.rank}, which takes {takes}"
    return ""


def _part(parts: Parts, rank: int, ranks: tuple[int, ...]) -> int | None:
    """Return a rank's part; None if there are no parts: nothing is given or taken, or it was too much to post."""
    at = ranks.index(rank) if rank in ranks else len(parts)
    return parts[at] if at < len(parts) else None


def _differences_of_messages(mine: Fingerprint, theirs: Fingerprint) -> list[str]:
    """A message may be received in another shape, but not in another dtype or size."""
    if ANYONE in {mine.peer, theirs.peer} or mine.loose or theirs.loose:
        return []
    return _differing(mine, theirs, ("dtype", "elements"))


def _differing(mine: Fingerprint, theirs: Fingerprint, fields: tuple[str, ...]) -> list[str]:
    return [_WORDS[field] for field in fields if getattr(mine, field) != getattr(theirs, field)]


def mismatch(mine: Fingerprint, theirs: Fingerprint) -> str | None:
    """Say how the operation of a rank does not fit the one that another rank has entered; None when it does."""
    differ = differences(mine, theirs)
    if not differ:
        return None
    if mine.peer is not None:
        rule = f"a send and its receive must agree in {' and '.join(differ)}"
    elif differ == [_OPERATION]:
        rule = "all ranks of a group must call the same collectives in the same order"
    elif differ == ["size"]:
        rule = _ill_fitting(mine, theirs)
    else:
        rule = f"all ranks must call it with the same {' and '.join(differ)}"
    return f"rank {mine.rank} calls {mine}, where rank {theirs.rank} called {theirs}; {rule}"
