"""Who waits for ever, from what ranks have posted, and what is said of it."""

import pytest

from pytest_ddp.operations.fingerprint import ANY_RANK, Fingerprint
from pytest_ddp.operations.table import RECV, SEND
from pytest_ddp.operations.wait_graph import Position, ranks_that_wait_for_ever, wait_text

WORLD = (0, 1, 2)


def collective(number: int, op: str = "all_reduce", group: str = "0", ranks=WORLD, **words) -> Fingerprint:
    return Fingerprint(op, group, tuple(ranks), number, -1, source=f"t.py:{number}", default=group == "0", **words)


def send(to: int, number: int = 1, **words) -> Fingerprint:
    return Fingerprint(SEND, "0", WORLD, number, -1, peer=to, source=f"t.py:{number}", **words)


def recv(source: int, number: int = 1, **words) -> Fingerprint:
    return Fingerprint(RECV, "0", WORLD, number, -1, peer=source, source=f"t.py:{number}", **words)


def rank_in(*entered: Fingerprint, waits=True, over: str = "", all_known: bool = True):
    """Describe a rank that has entered these, and waits in the last of them, or in the one of that index."""
    return entered, waits, over, all_known


def runs(*entered: Fingerprint):
    return rank_in(*entered, waits=False)


def returned(*entered: Fingerprint):
    return rank_in(*entered, waits=False, over="returned")


def positions(*ranks):
    made = {}
    for rank, (entered, waits, over, all_known) in enumerate(ranks):
        own = tuple(notice._replace(rank=rank) for notice in entered)
        waits_in = None if waits is False else own[-1 if waits is True else waits]
        made[rank] = Position(rank, own, waits_in, over, all_known)
    return made


ONE, TWO = collective(1), collective(2)
PAIR, OTHER_PAIR = {"group": "pair", "ranks": (0, 1)}, {"group": "other", "ranks": (0, 1)}
CASES = {
    # collectives
    "all have come": ([rank_in(ONE)] * 3, set()),
    "one still runs": ([rank_in(ONE), rank_in(ONE), runs()], set()),
    "one returned": ([rank_in(ONE), rank_in(ONE), returned()], {0, 1}),
    "one returned after it": ([rank_in(ONE), rank_in(ONE), returned(ONE)], set()),
    "one returned, one still runs": ([rank_in(ONE), runs(), returned()], {0}),
    "one is a collective behind, and runs": ([rank_in(ONE, TWO), rank_in(ONE, TWO), runs(ONE)], set()),
    "one is a collective ahead": ([rank_in(ONE), rank_in(ONE), rank_in(ONE, TWO)], set()),
    "one waits for the handle of an earlier one": ([rank_in(ONE, TWO, waits=0), rank_in(ONE), returned(ONE)], set()),
    "one waits for a handle, the others went": ([rank_in(ONE, TWO, waits=1), returned(ONE), returned(ONE)], {0}),
    "nobody waits": ([runs(), returned(), runs(ONE)], set()),
    "one waits where another does something else": (
        [rank_in(ONE), rank_in(collective(1, "barrier")), runs(ONE)],
        {0, 1},
    ),
    "what is unlike is being told so": ([rank_in(ONE), runs(collective(1, "barrier")), rank_in(ONE)], set()),
    "what was unlike has raised": (
        [rank_in(ONE), rank_in(collective(1, "barrier"), waits=False, over="failed"), rank_in(ONE)],
        {0, 2},
    ),
    # groups
    "crossed groups": (
        [rank_in(collective(1, **PAIR)), rank_in(collective(1, **OTHER_PAIR)), runs()],
        {0, 1},
    ),
    "a group that needs no third": ([rank_in(collective(1, **PAIR)), runs(), returned()], set()),
    "a ring of groups": (
        [
            rank_in(collective(1, group="a", ranks=(0, 1))),
            rank_in(collective(1, group="b", ranks=(1, 2))),
            rank_in(collective(1, group="c", ranks=(0, 2))),
        ],
        {0, 1, 2},
    ),
    "a chain of groups that ends in one that runs": (
        [rank_in(collective(1, group="a", ranks=(0, 1))), rank_in(collective(1, group="b", ranks=(1, 2))), runs()],
        set(),
    ),
    "a chain of groups that ends in one that returned": (
        [rank_in(collective(1, group="a", ranks=(0, 1))), rank_in(collective(1, group="b", ranks=(1, 2))), returned()],
        {0, 1},
    ),
    "a group of an earlier time has the same name": (
        [rank_in(ONE, TWO, ONE, TWO), returned(ONE, TWO, ONE), returned(ONE, TWO, ONE, TWO)],
        {0},
    ),
    # messages
    "a send without a receive": ([rank_in(send(1)), returned(), runs()], {0}),
    "a send whose receiver runs": ([rank_in(send(1)), runs(), returned()], set()),
    "a receive without a send": ([rank_in(recv(1)), returned(), runs()], {0}),
    "a message that is on its way": ([rank_in(send(1)), rank_in(recv(0)), returned()], set()),
    "the second of two messages": ([rank_in(recv(1), recv(1, 2)), returned(send(0)), runs()], {0}),
    "another tag": ([rank_in(send(1, tag=1)), rank_in(recv(0, tag=2)), runs()], {0, 1}),
    "a cycle of two": ([rank_in(recv(1)), rank_in(recv(0)), runs()], {0, 1}),
    "a cycle of three": ([rank_in(send(1)), rank_in(send(2)), rank_in(send(0))], {0, 1, 2}),
    "a cycle that a posted receive breaks": (
        [rank_in(recv(2, asynchronous=True), send(1)), rank_in(send(2)), rank_in(send(0))],
        set(),
    ),
    "a message against a collective": ([rank_in(recv(1)), rank_in(ONE), rank_in(ONE)], {0, 1, 2}),
    "a wait for one that waits for one that runs": ([rank_in(recv(1)), rank_in(recv(2)), runs()], set()),
    # receives from anyone
    "anyone, and one still runs": ([rank_in(recv(ANY_RANK)), returned(), runs()], set()),
    "anyone, and nobody is left": ([rank_in(recv(ANY_RANK)), returned(), returned()], {0}),
    "anyone, and one has sent": ([rank_in(recv(ANY_RANK)), returned(send(0)), returned()], set()),
    "anyone, but what was sent was taken": ([rank_in(recv(1), recv(ANY_RANK)), returned(send(0)), returned()], {0}),
    "anyone, and what was sent may have been taken": (
        [rank_in(recv(1, asynchronous=True), recv(ANY_RANK)), returned(send(0)), returned()],
        set(),
    ),
    "a send that anyone's receive may take": ([returned(recv(ANY_RANK)), rank_in(send(0)), returned()], set()),
    "a send that is one too many": ([returned(recv(ANY_RANK)), rank_in(send(0)), returned(send(0))], {1}),
    "two sends for one receive": ([returned(recv(ANY_RANK)), rank_in(send(0)), rank_in(send(0))], set()),
    "anyone and anyone": ([rank_in(recv(ANY_RANK)), rank_in(recv(ANY_RANK)), rank_in(recv(ANY_RANK))], {0, 1, 2}),
    # what is not known
    "a rank of which something was missed": (
        [rank_in(ONE), rank_in(ONE), rank_in(over="returned", waits=False, all_known=False)],
        set(),
    ),
    "a rank outside of the group is missing": (
        [rank_in(collective(1, group="x", ranks=(0, 7))), returned(), returned()],
        set(),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_which_ranks_wait_for_ever(case):
    ranks, expected = CASES[case]
    assert set(ranks_that_wait_for_ever(positions(*ranks))) == expected


@pytest.mark.parametrize(
    ("ranks", "own", "chain"),
    [
        ([runs(), runs(), runs()], "", ""),
        (
            [rank_in(ONE), returned(), returned()],
            "waits in all_reduce #1 at t.py:1, which ranks 1, 2 never entered: each has returned",
            "waits in all_reduce #1 at t.py:1, which ranks 1, 2 never entered: each has returned",
        ),
        (
            [rank_in(ONE), returned(), runs()],
            "waits in all_reduce #1 at t.py:1, which rank 1 never entered: it has returned, which rank 2 never entered",
            "waits in all_reduce #1 at t.py:1, which rank 1 never entered: it has returned, which rank 2 never entered",
        ),
        (
            [rank_in(ONE), rank_in(collective(1, "barrier")), rank_in(ONE)],
            "waits in all_reduce #1 at t.py:1, where rank 1 called barrier #1 at t.py:1",
            "waits in all_reduce #1 at t.py:1, where rank 1 called barrier #1 at t.py:1",
        ),
        (
            [rank_in(send(1)), rank_in(send(2)), rank_in(send(0))],
            "waits in send #1 to rank 1 at t.py:1, which never received it",
            (
                "waits in send #1 to rank 1 at t.py:1, which waits in send #1 to rank 2 at t.py:1, which waits in "
                "send #1 to rank 0 at t.py:1, which never received it"
            ),
        ),
        (
            [rank_in(recv(1)), rank_in(ONE), rank_in(ONE)],
            "waits in recv #1 from rank 1 at t.py:1, which never sent it",
            (
                "waits in recv #1 from rank 1 at t.py:1, which waits in all_reduce #1 at t.py:1, which rank 0 never "
                "entered"
            ),
        ),
        (
            [rank_in(recv(ANY_RANK)), returned(), returned()],
            "waits in recv #1 from any rank at t.py:1, to which ranks 1, 2 never sent: each has returned",
            "waits in recv #1 from any rank at t.py:1, to which ranks 1, 2 never sent: each has returned",
        ),
        (
            [rank_in(collective(1, **PAIR)), rank_in(collective(1, **OTHER_PAIR)), runs()],
            "waits in all_reduce #1 in group 'pair' of ranks 0, 1 at t.py:1, which rank 1 never entered",
            (
                "waits in all_reduce #1 in group 'pair' of ranks 0, 1 at t.py:1, which rank 1 never entered: it waits "
                "in all_reduce #1 in group 'other' of ranks 0, 1 at t.py:1, which rank 0 never entered"
            ),
        ),
    ],
)
def test_what_rank_0_waits_for_in_words(ranks, own, chain):
    found = positions(*ranks)
    assert wait_text(0, found) == own
    assert wait_text(0, found, chain=True) == chain


def test_a_receive_whose_message_was_sent_with_a_handle_asks_for_the_handle():
    dropped = positions(rank_in(recv(1)), returned(send(0, asynchronous=True)), runs())
    asks = "; rank 1 sent it with isend: is the handle kept and waited for?"
    assert wait_text(0, dropped) == f"waits in recv #1 from rank 1 at t.py:1{asks}"
    sent = positions(rank_in(recv(1)), returned(send(0)), runs())
    assert wait_text(0, sent) == "waits in recv #1 from rank 1 at t.py:1"


def test_a_chain_follows_each_of_many_ranks_once_and_not_all_of_them():
    size = 40
    groups = [rank_in(collective(1, group=f"g{rank}", ranks=range(size))) for rank in range(size)]
    assert 2 <= wait_text(0, positions(*groups), chain=True).count("waits in") <= 16


def test_ranks_that_wait_in_the_same_are_said_to_do_the_same():
    late = collective(1, group="x", ranks=range(4))
    found = positions(rank_in(ONE), rank_in(late), rank_in(late), returned())
    both = "which ranks 1, 2 never entered: each waits in all_reduce #1 in group 'x' of ranks 0, 1, 2, 3 at t.py:1"
    assert both in wait_text(0, found, chain=True)
