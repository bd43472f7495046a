"""The root cause is found, and said in words with its rank."""

import pickle
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

import pytest

from pytest_ddp.given.failures import example_failure
from pytest_ddp.operations.fingerprint import Fingerprint
from pytest_ddp.outcomes.failure import (
    RankFailure,
    describe_outcome,
    details,
    failures,
    headline,
    raise_for,
    root_cause,
)
from pytest_ddp.outcomes.outcome import Deadlocked, Died, Raised, Returned, Skipped, Stopped, TimedOut
from pytest_ddp.planning.world import World


def entered(*ops: str) -> tuple[Fingerprint, ...]:
    return tuple(Fingerprint(op, "0", (0, 1), number, 0) for number, op in enumerate(ops, 1))


CLOSED = Raised(
    rank=0,
    seconds=0.1,
    kind="RuntimeError",
    message="[gloo/pair.cc:1] Connection closed by peer [::1]:7",
    traceback="T0",
)
OWN = Raised(rank=1, seconds=0.5, kind="ValueError", message="wrong\nmore", traceback="T1", output="printed\n")
KILLED = Died(rank=2, seconds=0.6, signal="SIGKILL", collectives=entered("all_reduce", "barrier"))
DEADLOCKED = Deadlocked(
    rank=1,
    stack="S1",
    waits="waits in send to rank 2 at t.py:3",
    chain="waits in send to rank 2 at t.py:3, which has returned",
)
STOPPED = Stopped(rank=3, seconds=0.01, stack="S3", collectives=entered("all_reduce"))


def test_local_failures_come_before_peers_that_left_and_those_before_ranks_we_stopped():
    order = failures([CLOSED, STOPPED, KILLED, OWN, Returned(rank=4)])
    assert [outcome.rank for outcome in order] == [1, 2, 0, 3]


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: [gloo/pair.cc:1] Connection closed by peer [::1]:7",
        "E   RuntimeError: [gloo/pair.cc:1] Connection closed by peer [::1]:7",
        "  | torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.",
    ],
)
def test_who_raised_its_own_exception_from_the_loss_of_a_peer_comes_after_that_peer(line):
    traceback = f"T\n{line}\nSyncError: no sync"
    wrapped = Raised(rank=0, seconds=0.1, kind="SyncError", message="no sync", traceback=traceback)
    assert root_cause([wrapped, KILLED]) is KILLED
    assert root_cause([wrapped, CLOSED]) is wrapped
    assert type(example_failure([wrapped, KILLED], {}, World(3))).__doc__ == "was killed by SIGKILL"


def test_who_only_speaks_of_a_lost_peer_is_the_first_in_time():
    source = '    log("Connection closed by peer")\nSyncError: no sync'
    speaks = Raised(rank=0, seconds=0.1, kind="SyncError", message="no sync", traceback=source)
    assert root_cause([KILLED, speaks]) is speaks


def test_of_ranks_that_hang_the_one_that_came_least_far_is_the_cause():
    ahead = TimedOut(rank=0, timeout=3, collectives=entered("all_reduce", "all_reduce"))
    behind = TimedOut(rank=1, timeout=3, collectives=entered("all_reduce"))
    assert root_cause([ahead, behind]) is behind


def test_without_a_failure_there_is_no_cause():
    raise_for([Returned(rank=0), Skipped(rank=1, reason="no")])
    with pytest.raises(ValueError, match="no rank failed"):
        root_cause([Returned(rank=0)])


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Returned(rank=0), "passed"),
        (Skipped(rank=0, reason="no GPU"), "skipped: no GPU"),
        (OWN, "raised ValueError: wrong"),
        (Raised(rank=0, kind="KeyError", message="", traceback=""), "raised KeyError"),
        (CLOSED, "failed because a peer left the group; it entered no collective"),
        (KILLED, "was killed by SIGKILL; last collective entered: barrier #2"),
        (Died(rank=0, exit_code=3), "exited with code 3 before it finished; it entered no collective"),
        (Died(rank=0), "ended in an unknown way; it entered no collective"),
        (TimedOut(rank=0, timeout=2.5), "was still running at its deadline of 2.5 s; it entered no collective"),
        (TimedOut(rank=0, timeout=30.0727), "was still running at its deadline of 30.1 s; it entered no collective"),
        (
            STOPPED,
            "was still running when another rank failed, and was stopped; last collective entered: all_reduce #1",
        ),
        (
            Stopped(rank=3, waits="waits in barrier #2 at t.py:3", collectives=entered("all_reduce", "barrier")),
            "was still running when another rank failed, and was stopped; it waits in barrier #2 at t.py:3",
        ),
        (
            TimedOut(rank=3, timeout=2.5, waits="waits in barrier #2 at t.py:3"),
            "was still running at its deadline of 2.5 s; it waits in barrier #2 at t.py:3",
        ),
        (DEADLOCKED, "deadlocked: it waits in send to rank 2 at t.py:3"),
    ],
)
def test_every_outcome_has_words(outcome, words):
    assert describe_outcome(outcome) == words


ENDED = {"collectives": entered("barrier")}
WAITS = {"waits": "waits in barrier #2, which rank 9 never entered: it has failed"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Returned, "passed"),
        (partial(Skipped, reason="it was late"), "skipped: it was late"),
        (partial(Raised, kind="KeyError", message="it was here", traceback=""), "raised KeyError: it was here"),
        (partial(replace, CLOSED), "failed because a peer left the group; they entered no collective"),
        (partial(Died, signal="SIGSEGV"), "were killed by SIGSEGV; they entered no collective"),
        (
            partial(Died, exit_code=3, **ENDED),
            "exited with code 3 before they finished; last collective entered: barrier #1",
        ),
        (
            partial(Died, exit_code=1, exit_note="gone"),
            "exited with code 1 before they finished: gone; they entered no *",
        ),
        (Died, "ended in an unknown way; they entered no collective"),
        (partial(TimedOut, timeout=3), "were still running at their deadline of 3 s; they entered no collective"),
        (
            partial(TimedOut, timeout=3, halted=True, **WAITS),
            "were still stopped by a signal at their deadline of 3 s; they wait in barrier #2, *: it has failed",
        ),
        (
            partial(Stopped, **WAITS),
            "were still running when another rank failed, and were stopped; they wait in barrier #2, *: it has failed",
        ),
        (partial(Deadlocked, **WAITS), "deadlocked: they wait in barrier #2, *: it has failed"),
    ],
)
def test_ranks_that_share_a_line_have_a_verb_in_the_plural(make, words):
    """Messages of users and what other ranks did are not changed."""
    first = Raised(rank=9, seconds=-1.0, kind="ValueError", message="wrong", traceback="")
    line = headline([make(rank=0), make(rank=2), first]).splitlines()[1]
    assert fnmatchcase(line, f"  ranks 0, 2: {words}")


def test_the_headline_names_the_cause_and_folds_ranks_alike():
    passed = [Returned(rank=rank) for rank in (0, 2)]
    assert headline([passed[0], OWN, passed[1]], World(3)).splitlines() == [
        "rank 1 of 3 (gloo, cpu) raised ValueError: wrong",
        "  ranks 0, 2: passed",
    ]


def test_the_text_holds_tracebacks_stacks_and_output_but_no_story_twice():
    same = Raised(rank=5, seconds=0.7, kind="ValueError", message="wrong\nat another address", traceback="T5")
    lines = str(RankFailure([CLOSED, OWN, STOPPED, same], World(6))).splitlines()
    details = lines[lines.index("---- rank 1: traceback ----") :]
    assert details == [
        "---- rank 1: traceback ----",
        "T1",
        "---- rank 3: Python stacks ----",
        "S3",
        "---- rank 1: captured output ----",
        "printed",
    ]


def test_it_survives_pickling():
    failure = RankFailure([OWN], World(2))
    copy = pickle.loads(pickle.dumps(failure))  # noqa: S301
    assert (str(copy), copy.outcomes, copy.root) == (str(failure), failure.outcomes, OWN)


def test_of_a_deadlock_the_whole_chain_is_told_once_and_nothing_is_guessed():
    other = Deadlocked(rank=3, seconds=1, waits="waits in recv from rank 1 at t.py:5", collectives=entered("barrier"))
    assert headline([Returned(rank=2), DEADLOCKED, other], World(4)).splitlines() == [
        "rank 1 of 4 (gloo, cpu) deadlocked: it waits in send to rank 2 at t.py:3, which has returned",
        "  rank 2: passed",
        "  rank 3: deadlocked: it waits in recv from rank 1 at t.py:5",
    ]
    assert details([DEADLOCKED]) == ["---- rank 1: Python stacks ----\nS1"]


def test_who_waited_for_a_rank_that_skipped_is_told_with_its_line():
    waited = Stopped(rank=0, waits="waits in barrier #1 at t.py:3, which rank 1 never entered: it has skipped")
    lines = headline([waited, Skipped(rank=1, reason="no")], World(2)).splitlines()
    assert lines[0].startswith("the ranks disagree: rank 1 skipped: no, while rank 0 continued and waited for it")
    assert lines[1].endswith("; it waits in barrier #1 at t.py:3, which rank 1 never entered: it has skipped")
