"""The rank to which `--pdb` and `breakpoint()` give the terminal, or why there is none."""

import time

import pytest

from pytest_ddp import UsageError
from pytest_ddp.controller.debugger import choose_rank
from pytest_ddp.outcomes.outcome import Died, Raised, Returned, Skipped, TimedOut
from pytest_ddp.pool.deadline import Deadline
from pytest_ddp.rank_session.debugger import stops_here


def raised(rank: int, seconds: float = 0.0) -> Raised:
    return Raised(rank=rank, seconds=seconds, kind="ValueError", message="", traceback="")


@pytest.mark.parametrize(
    ("outcomes", "wanted", "chosen"),
    [
        ([raised(0, 2.0), raised(1, 1.0)], None, 1),
        ([raised(0, 2.0), raised(1, 1.0)], 0, 0),
        ([raised(0, 2.0), Returned(rank=1)], 1, 0),
        ([Died(rank=0, signal="SIGSEGV"), raised(1)], 1, 1),
        ([Returned(rank=0), Skipped(rank=1, reason="")], None, "no rank raised an exception"),
        (
            [TimedOut(rank=0, timeout=3)],
            None,
            "rank 0 was still running at its deadline of 3 s; it entered no collective, and left no frames",
        ),
        (
            [Died(rank=0, exit_code=3), raised(1, 9.0)],
            None,
            (
                "rank 0 exited with code 3 before it finished; it entered no collective, and left no frames; "
                "rank 1 can be debugged with --ddp-pdb-rank=1"
            ),
        ),
    ],
)
def test_the_rank_to_debug_after_a_failure(outcomes, wanted, chosen):
    assert choose_rank(outcomes, wanted) == chosen


def test_breakpoints_stop_the_chosen_rank():
    assert stops_here(1, 2, wanted=1, terminal="/dev/pts/0")
    assert not stops_here(0, 2, wanted=1, terminal="/dev/pts/0")


@pytest.mark.parametrize(
    ("wanted", "terminal", "message"),
    [
        (None, "/dev/pts/0", "for instance with --ddp-pdb-rank=0; the other ranks pass over it"),
        (2, "/dev/pts/0", "--ddp-pdb-rank=2, but this test's last rank is 1"),
        (0, None, "needs a terminal, but pytest.s standard input is not a terminal"),
    ],
)
def test_breakpoints_that_cannot_stop_on_any_rank(wanted, terminal, message):
    with pytest.raises(UsageError, match=message):
        stops_here(0, 2, wanted, terminal)


def test_the_clock_is_stopped_while_a_rank_is_debugged():
    deadline = Deadline([], time.monotonic() + 1000, grace=1.0)
    deadline.set_paused(paused=True)
    deadline.ends_at = time.monotonic() - 1000  # as if that time had passed
    assert deadline.seconds is None
    assert not deadline.is_over()
    deadline.set_paused(paused=False)
    assert deadline.is_over()
