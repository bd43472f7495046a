"""Finds the root cause among the outcomes of a run, and says it in words.

A rank that failed by itself comes before ranks that failed because a peer left, which come before ranks that we
ended; among equals the one that failed first comes first. A rank that raised an exception of its own from the loss of
a peer comes after those that failed with no such reason, whatever the clocks say: a death is seen some time after it.
"""

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pytest_ddp.errors import PytestDDPError
from pytest_ddp.outcomes.hang_diagnosis import caused_by_peer_loss, peer_left, standstill
from pytest_ddp.outcomes.hints import hint
from pytest_ddp.outcomes.outcome import Deadlocked, Died, Ended, Outcome, Raised, Returned, Skipped, Stopped, TimedOut
from pytest_ddp.outcomes.text_limits import one_line
from pytest_ddp.planning.world import World, rank_list

_COLLECTIVES_SHOWN = 8


class RankFailure(PytestDDPError):  # noqa: N818  a failure of ranks, as pytest's own outcomes are named
    """Some ranks of a run failed; the text is the whole report.

    Attributes:
        outcomes: what became of each rank, in rank order.
    """

    def __init__(self, outcomes: Sequence[Outcome], world: World | None = None) -> None:
        super().__init__(tuple(outcomes), world)
        self.outcomes = tuple(outcomes)
        self.world = world

    @property
    def root(self) -> Outcome:
        """The outcome that caused the others."""
        return root_cause(self.outcomes)

    def __str__(self) -> str:
        told = [*details(self.outcomes), *outputs(self.outcomes)]
        told += [f"---- {ranks}: last collectives ----\n{text}" for ranks, text in last_collectives(self.outcomes)]
        told += [f"---- {ranks}: timeline ----\n{text}" for ranks, text in timelines(self.outcomes)]
        return "\n".join([headline(self.outcomes, self.world), *told])


def failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes that are failures, root cause first."""
    failed = [outcome for outcome in outcomes if not isinstance(outcome, Returned | Skipped)]
    return sorted(failed, key=_precedence)


def root_cause(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the failure that explains the others; raise ValueError when nothing failed."""
    failed = failures(outcomes)
    if not failed:
        raise ValueError("no rank failed")
    return failed[0]


def raise_for(outcomes: Sequence[Outcome], world: World | None = None) -> None:
    """Raise RankFailure if any rank failed."""
    __tracebackhide__ = True
    if failures(outcomes):
        raise RankFailure(outcomes, world)


def _precedence(outcome: Outcome) -> tuple[int, bool, int, float, int]:
    # Of ranks that stand still, the one that is halted, or that came least far, is the one that the others wait for.
    progress = len(outcome.collectives) if isinstance(outcome, Ended) and not outcome.halted else 0
    return blame(outcome), caused_by_peer_loss(outcome), progress, outcome.seconds, outcome.rank


def blame(outcome: Outcome) -> int:
    """Return 0 for a rank that failed by itself, 1 if it failed because a peer left, 2 if it was ended by us."""
    return 2 if isinstance(outcome, Stopped) else 1 if peer_left(outcome) else 0


def describe_outcome(outcome: Outcome) -> str:
    """Return one line on what became of a rank, without its number."""
    match outcome:
        case Returned():
            return "passed"
        case Skipped():
            return f"skipped: {outcome.reason}"
        case Raised() if peer_left(outcome):
            return "failed because a peer left the group" + _last(outcome)
        case Raised():
            first = one_line(outcome.message)
            return f"raised {outcome.kind}: {first}" if first else f"raised {outcome.kind}"
        case Died():
            return outcome.how + _last(outcome)
        case TimedOut():
            state = "stopped by a signal" if outcome.halted else "running"
            return f"was still {state} at its deadline of {outcome.timeout:g} s" + _last(outcome)
        case Stopped():
            return f"was still running when {outcome.because}, and was stopped" + _last(outcome)
        case Deadlocked():
            return f"deadlocked: it {outcome.waits}"


def _last(outcome: Outcome) -> str:
    if isinstance(outcome, Ended) and outcome.waits:
        return f"; it {outcome.waits}"
    entered = outcome.last_collective
    return f"; last collective entered: {entered}" if entered else "; it had entered no collective"


def headline(outcomes: Sequence[Outcome], world: World | None = None) -> str:
    """Return the first lines of a report: the root cause, then what became of the other ranks."""
    root = root_cause(outcomes)
    of = f"rank {root.rank} of {len(outcomes) if world is None else world.size}"
    where = f" ({world.backend}, {world.device})" if world else ""
    disagree = _skipped_while_others_waited(outcomes)
    lines = [disagree or f"{of}{where} {_describe_root(root)}"]
    told_apart = disagree is not None and isinstance(root, Ended) and bool(root.waits)
    lines += [f"  {ranks}: {what}" for ranks, what in _alike(o for o in outcomes if o is not root or told_apart)]
    lines += [f"  {line}" for line in standstill(outcomes)]
    advice = hint(root.message) if isinstance(root, Raised) else None
    return "\n".join([*lines, f"  hint: {advice}"] if advice else lines)


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return one line on the root cause."""
    root = root_cause(outcomes)
    return _skipped_while_others_waited(outcomes) or f"rank {root.rank} {_describe_root(root)}"


def _describe_root(root: Outcome) -> str:
    """Return one line on the root cause; of a deadlock, who waits for whom all along."""
    return f"deadlocked: it {root.chain}" if isinstance(root, Deadlocked) else describe_outcome(root)


def _skipped_while_others_waited(outcomes: Sequence[Outcome]) -> str | None:
    """Return a sentence if ranks failed for no other reason than that some skipped while others waited for them."""
    skipped = [outcome for outcome in outcomes if isinstance(outcome, Skipped)]
    failed = failures(outcomes)
    if not skipped or not all(blame(outcome) for outcome in failed):
        return None
    others = rank_list(sorted(outcome.rank for outcome in failed))
    return (
        f"the ranks disagree: rank {skipped[0].rank} {describe_outcome(skipped[0])}, "
        f"while {others} went on and waited for it; "
        "decide alike on every rank, or let the ranks agree by a collective first"
    )


def _alike(outcomes: Iterable[Outcome], told: Callable[[Outcome], str] = describe_outcome) -> list[tuple[str, str]]:
    """Group ranks of which the same is to be said."""
    said: dict[str, list[int]] = {}
    for outcome in outcomes:
        said.setdefault(told(outcome), []).append(outcome.rank)
    return [(rank_list(ranks), what) for what, ranks in said.items()]


def last_collectives(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """Return the last collectives of ranks that were not observed, where one was ended or has died.

    Ranks that have entered the same ones are told together. Nothing is returned where each has entered one at most,
    which its line says.
    """
    if not any(isinstance(outcome, Died | Ended) for outcome in outcomes) or any(o.timeline for o in outcomes):
        return []
    return _alike(outcomes, _entered) if any(len(outcome.collectives) > 1 for outcome in outcomes) else []


def _entered(outcome: Outcome) -> str:
    before = max(0, len(outcome.collectives) - _COLLECTIVES_SHOWN)
    return "\n".join([*(["..."] if before else []), *outcome.collectives[before:]]) or "none"


def timelines(outcomes: Iterable[Outcome]) -> list[tuple[str, str]]:
    """Return what happened on the ranks, those together on which it was the same."""
    return _alike((outcome for outcome in outcomes if outcome.timeline), lambda outcome: outcome.timeline)


def details(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the traceback or the stacks of every rank that has its own story, root cause first."""
    told: set[str] = set()
    return [
        f"---- rank {outcome.rank}: {'traceback' if isinstance(outcome, Raised) else 'Python stacks'} ----\n{text}"
        for outcome in failures(outcomes)
        if (text := _story(outcome, told))
    ]


def _story(outcome: Outcome, told: set[str]) -> str:
    if isinstance(outcome, Died | Ended):
        return outcome.stack.rstrip()
    if not isinstance(outcome, Raised) or peer_left(outcome) or describe_outcome(outcome) in told:
        return ""
    told.add(describe_outcome(outcome))
    return outcome.traceback.rstrip()


def outputs(outcomes: Iterable[Outcome]) -> list[str]:
    """Return what each rank printed."""
    return [f"---- rank {o.rank}: captured output ----\n{o.output.rstrip()}" for o in outcomes if o.output.strip()]


_PLACE = re.compile(r'File "[^"]+", line \d+|^\S+:\d+(?=: )', re.MULTILINE)  # as Python writes it, as pytest does


def raise_as_bug(outcomes: Sequence[Outcome], world: World) -> None:
    """Raise RankFailure if any rank failed, of a type that names the bug."""
    __tracebackhide__ = True
    if failures(outcomes):
        raise _type_of_failure(failure_origin(root_cause(outcomes)))(outcomes, world)


def failure_origin(outcome: Outcome) -> str:
    """Name the bug behind an outcome of which the rank itself gave no account; messages, which vary, are left out."""
    if isinstance(outcome, Raised):
        return " ".join([outcome.kind, *_PLACE.findall(outcome.traceback)[-1:]])
    if isinstance(outcome, Died):
        return " ".join([outcome.how, *_PLACE.findall(outcome.stack)[:1]])
    return type(outcome).__name__


@functools.cache
def _type_of_failure(origin: str) -> type[RankFailure]:
    words = {"__doc__": origin, "__module__": RankFailure.__module__, "__reduce__": _plain}
    return type(RankFailure.__name__, (RankFailure,), words)


def _plain(failure: RankFailure) -> tuple[type[RankFailure], tuple[Any, ...]]:
    """Let a failure be pickled as what it is apart from its type, which another process does not know."""
    return RankFailure, failure.args
