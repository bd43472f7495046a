"""The first difference between the collectives of two ranks."""

import pytest

from pytest_ddp.observed.inspection.compare_ranks import first_difference
from pytest_ddp.operations.fingerprint import Fingerprint

BOTH, WIDER, OTHERS = (0, 1), (0, 1, 2), (0, 2)


def fingerprints(rank: int, text: str, ranks: tuple[int, ...] = BOTH) -> list[Fingerprint]:
    """Return the fingerprints of, for instance, "all_reduce broadcast": collectives of one group."""
    return [
        Fingerprint(
            op, str(ranks), ranks, number, rank, dtype="float32", shapes="[4]", source=f"train.py:{number}", root=0
        )
        for number, op in enumerate(text.split(), 1)
    ]


def difference(mine: list[Fingerprint], theirs: list[Fingerprint]) -> str | None:
    return first_difference(mine, theirs, (0, 1))


def test_equal_records():
    assert difference(fingerprints(0, "all_reduce broadcast"), fingerprints(1, "all_reduce broadcast")) is None
    assert difference([], []) is None


def test_a_different_operation():
    assert difference(fingerprints(0, "barrier all_reduce"), fingerprints(1, "barrier broadcast")) == (
        "collective 2 differs: rank 0 entered all_reduce #2 float32[4] with root 0 at train.py:2, "
        "rank 1 entered broadcast #2 float32[4] with root 0 at train.py:2"
    )


@pytest.mark.parametrize(
    ("mine", "theirs", "which"), [("barrier", "barrier barrier", 0), ("barrier barrier", "barrier", 1)]
)
def test_one_collective_more(mine, theirs, which):
    text = difference(fingerprints(0, mine), fingerprints(1, theirs)) or ""
    assert text.startswith(
        "collective 2 differs: rank 0 entered"
        if which
        else "collective 2 differs: rank 0 entered only 1, rank 1 entered"
    )
    assert f"rank {which} entered only 1" in text


def test_a_different_shape():
    theirs = [one._replace(shapes="[5]", elements=5) for one in fingerprints(1, "all_reduce")]
    assert "rank 1 entered all_reduce #1 float32[5]" in (difference(fingerprints(0, "all_reduce"), theirs) or "")


def test_a_different_order_of_two_groups():
    mine = fingerprints(0, "all_reduce") + fingerprints(0, "all_reduce", WIDER)
    theirs = fingerprints(1, "all_reduce", WIDER) + fingerprints(1, "all_reduce")
    assert (difference(mine, theirs) or "").startswith("collective 1 differs: ")


def test_messages_and_groups_of_only_one_of_the_ranks_are_not_compared():
    alone = fingerprints(0, "all_reduce", OTHERS)
    message = [one._replace(peer=1) for one in fingerprints(0, "send")]
    assert difference(alone + message + fingerprints(0, "barrier"), fingerprints(1, "barrier")) is None
