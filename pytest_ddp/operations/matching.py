"""Whether operations of two ranks match: whether they can be the same collective, or a message and its receive."""

from collections import Counter
from collections.abc import Mapping, Sequence

from pytest_ddp.operations.fingerprint import ANY_RANK, Fingerprint
from pytest_ddp.operations.table import named

_WORDS = {"root": "root", "reduction": "reduction", "dtype": "dtype", "shapes": "shape", "elements": "size"}
_OPERATION = "operation"


def differences(mine: Fingerprint, theirs: Fingerprint) -> list[str]:
    """Return in which words two operations with the same key differ though they must agree; none if they match."""
    if mine.peer is not None or theirs.peer is not None:
        is_any = ANY_RANK in {mine.peer, theirs.peer} or mine.after_any_rank or theirs.after_any_rank
        # A message may be received in another shape, but not in another dtype or size.
        return [] if is_any else _differing(mine, theirs, ("dtype", "elements"))
    if mine.op != theirs.op:
        return [_OPERATION]
    differ = _differing(mine, theirs, named(mine.op).must_match)
    return differ or (["size"] if _wrong_size(mine, theirs) else [])


def _differing(mine: Fingerprint, theirs: Fingerprint, fields: tuple[str, ...]) -> list[str]:
    return [_WORDS[field] for field in fields if getattr(mine, field) != getattr(theirs, field)]


def _wrong_size(mine: Fingerprint, theirs: Fingerprint) -> str:
    """Say which rank sends more or less than the other one receives; "" if the sizes agree."""
    for sender, receiver in ((mine, theirs), (theirs, mine)):
        sent = _size(sender.sends, receiver.rank, mine.ranks)
        received = _size(receiver.receives, sender.rank, mine.ranks)
        if None not in {sent, received} and sent != received:
            return f"rank {sender.rank} sends {sent} elements to rank {receiver.rank}, which receives {received}"
    return ""


def _size(sizes: tuple[int, ...], rank: int, ranks: tuple[int, ...]) -> int | None:
    """Return the size for a rank; None if it is not known, or the operation has no sizes that may differ."""
    if not sizes:
        return None
    at = ranks.index(rank) if rank in ranks else len(sizes)
    return sizes[at] if at < len(sizes) else None


def mismatch(mine: Fingerprint, theirs: Fingerprint) -> str | None:
    """Say how the operation of a rank does not match the one that another rank has entered; None if it does."""
    rule = broken_rule(mine, theirs)
    return rule and f"rank {mine.rank} calls {mine}, where rank {theirs.rank} called {theirs}; {rule}"


def broken_rule(mine: Fingerprint, theirs: Fingerprint) -> str | None:
    """Return the rule by which two operations do not match; None if they match."""
    differ = differences(mine, theirs)
    if not differ:
        return None
    if mine.peer is not None:
        return f"a send and its receive must agree in {' and '.join(differ)}"
    if differ == [_OPERATION]:
        return "all ranks of a group must call the same collectives in the same order"
    if differ == ["size"]:
        return _wrong_size(mine, theirs)
    return f"all ranks must call it with the same {' and '.join(differ)}"


def first_mismatch(entered: Mapping[int, Sequence[Fingerprint]]) -> tuple[int, str] | None:
    """Return a rank and how one of its operations does not match that of a lower rank; None if all match.

    Operations that a rank has entered twice under one key are left out: their group was destroyed and made again.
    """
    once = {rank: _entered_once(operations) for rank, operations in entered.items()}
    for rank, operations in sorted(entered.items()):
        for mine in operations:
            for other in (other for other in mine.others if other < rank and mine.key in once[rank]):
                theirs = once.get(other, {}).get(mine.key)
                if theirs is not None and (text := mismatch(mine, theirs)):
                    return rank, text
    return None


def _entered_once(operations: Sequence[Fingerprint]) -> dict[object, Fingerprint]:
    counts = Counter(operation.key for operation in operations)
    return {operation.key: operation for operation in operations if counts[operation.key] == 1}
