"""The failure of a run: its root cause among the outcomes of the ranks, and the report in words.

A rank fails by itself, or because a peer left the group, or because the controller stopped it. The root cause is the
rank that failed by itself; if several did, the first in time. A rank that raised its own exception from the loss of a
peer comes after the other ranks that failed by themselves, since the controller sees a death some time after it.
"""

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from pytest_ddp.errors import PytestDDPError
from pytest_ddp.outcomes.hang_diagnosis import caused_by_peer_loss, describe_hang, operation_disagreement, peer_left
from pytest_ddp.outcomes.outcome import (
    SIMULATION_ENDED,
    Deadlocked,
    Died,
    Ended,
    Failure,
    Outcome,
    Raised,
    Returned,
    Skipped,
    Stopped,
    TimedOut,
)
from pytest_ddp.outcomes.text_limits import one_line
from pytest_ddp.planning.world import World, rank_list

_COLLECTIVES_SHOWN = 8
_GROUPS_SHOWN = 16  # of ranks that ended alike
_PLACE = re.compile(r'File "[^"]+", line \d+|^\S+:\d+(?=: )', re.MULTILINE)  # as Python writes it, and as pytest does
_OWN_GROUP = (
    "dist.init_process_group('gloo', init_method=f'file://{ddp.shared_path}/store', rank=ddp.rank, "
    "world_size=ddp.world_size)"
)
_HINTS = {  # a pattern in the message of an exception: advice
    r"initialize the default process group twice": (
        "@distributed has already created the process group: use that one. To test code that creates its own, write "
        f"@distributed(group=False), or call dist.destroy_process_group() first, then for example {_OWN_GROUP}"
    ),
    r"environment variable MASTER_(ADDR|PORT) expected": (
        f"ranks have it in their environment, so something has removed it there; without it, write {_OWN_GROUP}"
    ),
    r"Default process group has not been initialized": (
        "@distributed creates the process group before the test begins: either the test has destroyed it, or this is a "
        "process that the test started, which has no group"
    ),
    r"no backend type associated with device type (?P<type>\w+)": (
        "the process group cannot send tensors on {type}: move them to ddp.device, or use another backend"
    ),
    r"fixture '(?P<name>[^']+)' not found": (
        "if plain tests find {name!r}, it is from a plugin that is registered in pytest's own process only; ranks have "
        "the fixtures of conftest files and of installed plugins"
    ),
    r"address already in use|EADDRINUSE": (
        "another process on this machine uses that port: let the system choose one (port 0), or use the process group "
        "that @distributed has created"
    ),
    r"Pair is not connected .*<--> \[": (
        "over gloo, a rank cannot send to itself or receive from itself: check src and dst against ddp.rank"
    ),
    r"EOF when reading a line": "ranks have no standard input; breakpoint() works with --ddp-pdb-rank=RANK",
}


class RankFailure(PytestDDPError):  # noqa: N818  a failure of ranks, as pytest's own outcomes are named
    """A run in which at least one rank failed; its text is the whole report.

    Attributes:
        outcomes: one per rank, in rank order.
        world: the world of the run, if known.
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
        parts = [headline(self.outcomes, self.world), *details(self.outcomes)]
        parts += [_section(f"rank {o.rank}", "captured output", o.output) for o in self.outcomes if o.output.strip()]
        parts += [_section(ranks, title, text) for title, ranks, text in operations(self.outcomes)]
        return "\n".join(parts)

    def __reduce__(self) -> tuple[type["RankFailure"], tuple[Any, ...]]:
        return RankFailure, self.args  # a subclass that `raise_for` made is unknown to other processes


def raise_for(outcomes: Sequence[Outcome], world: World | None = None) -> None:
    """Raise RankFailure if any rank failed; each origin has a subclass: Hypothesis tells bugs apart by type."""
    __tracebackhide__ = True
    if failures(outcomes):
        raise _failure_type(failure_origin(root_cause(outcomes)))(outcomes, world)


@functools.cache
def _failure_type(origin: str) -> type[RankFailure]:
    return type(RankFailure.__name__, (RankFailure,), {"__doc__": origin, "__module__": RankFailure.__module__})


def failure_origin(outcome: Outcome) -> str:
    """Return the kind and place of a failure, without its message: messages vary from example to example."""
    if isinstance(outcome, Raised):
        return " ".join([outcome.kind, *_PLACE.findall(outcome.traceback)[-1:]])
    if isinstance(outcome, Died):
        return " ".join([_death(outcome), *_PLACE.findall(outcome.stack)[:1]])
    return type(outcome).__name__


def failures(outcomes: Iterable[Outcome]) -> list[Failure]:
    """Return the outcomes that are failures, root cause first."""
    failed = [outcome for outcome in outcomes if not isinstance(outcome, Returned | Skipped)]
    return sorted(failed, key=_precedence)


def root_cause(outcomes: Iterable[Outcome]) -> Failure:
    """Return the failure that explains the others; raise ValueError if no rank failed."""
    failed = failures(outcomes)
    if not failed:
        raise ValueError("no rank failed")
    return failed[0]


def is_consequence(outcome: Outcome) -> bool:
    """Whether a rank failed only because another one did: a peer left the group, or the controller stopped the rank."""
    return isinstance(outcome, Stopped) or peer_left(outcome)


def _precedence(outcome: Failure) -> tuple[bool, bool, bool, int, float, int]:
    # If ranks hang, the others wait for the rank that a signal has stopped, or that entered the fewest collectives.
    progress = len(outcome.collectives) if isinstance(outcome, Ended) and not outcome.halted else 0
    stopped, lost_peer = isinstance(outcome, Stopped), caused_by_peer_loss(outcome)
    return stopped, peer_left(outcome), lost_peer, progress, outcome.seconds, outcome.rank


def headline(outcomes: Sequence[Outcome], world: World | None = None) -> str:
    """Return the head of a report.

    Its lines are the root cause, the other ranks, where the collectives of the ranks differ, and a hint.
    """
    root, disagreement = root_cause(outcomes), _disagreement(outcomes)
    where = f" of {world.size} ({world.backend}, {world.device})" if world else f" of {len(outcomes)}"
    listed_too = disagreement and isinstance(root, Died | Ended)
    others = _alike((o for o in outcomes if o is not root or listed_too), describe_outcome)
    if len(others) > _GROUPS_SHOWN:
        others = _alike((o for o in outcomes if o is not root or listed_too), _in_short)
    advice = hint(root.message) if isinstance(root, Raised) else None
    lines = [
        disagreement or f"rank {root.rank}{where} {_describe_root(root)}",
        *(f"{_ranks(alike)}: {_describe_all(alike)}" for alike in others.values()),
        *([] if disagreement else describe_hang(outcomes)),
        *([f"hint: {advice}"] if advice else []),
        *([f"schedule: --ddp-schedule={root.schedule} replays it"] if root.schedule else []),
    ]
    return "\n  ".join(lines)


def _in_short(outcome: Outcome) -> str:
    """Return a line that does not depend on the message of an exception."""
    return f"raised {failure_origin(outcome)}" if isinstance(outcome, Raised) else describe_outcome(outcome)


def _describe_all(alike: Sequence[Outcome]) -> str:
    """Return one line on several ranks that ended alike, perhaps with different messages."""
    first = describe_outcome(alike[0], several=len(alike) > 1)
    same = all(describe_outcome(outcome) == describe_outcome(alike[0]) for outcome in alike)
    return first if same else f"{first} (on rank {alike[0].rank}; the others alike)"


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return one line on the root cause."""
    root = root_cause(outcomes)
    return _disagreement(outcomes) or f"rank {root.rank} {_describe_root(root)}"


def hint(message: str) -> str | None:
    """Return advice for an exception whose message does not lead to its cause; None if there is no advice."""
    for pattern, advice in _HINTS.items():
        found = re.search(pattern, message, re.IGNORECASE)
        if found is not None:
            return advice.format(**found.groupdict()) if found.groupdict() else advice
    return None


def describe_outcome(outcome: Outcome, *, several: bool = False) -> str:
    """Return one line on what became of a rank, or of several ranks alike, without their numbers."""
    was, it, its = ("were", "they", "their") if several else ("was", "it", "its")
    match outcome:
        case Returned():
            return "was killed by a fault" if outcome.killed else "passed"
        case Skipped():
            return f"skipped: {outcome.reason}"
        case Raised() if peer_left(outcome):
            return "failed because a peer left the group" + _last_operation(outcome, it)
        case Raised():
            first = one_line(outcome.message)
            return f"raised {outcome.kind}: {first}" if first else f"raised {outcome.kind}"
        case Died():
            return _death(outcome, was, it) + _last_operation(outcome, it)
        case TimedOut():
            state = "stopped by a signal" if outcome.halted else "running"
            seconds = f"{round(outcome.timeout, 1):g} s"
            return f"{was} still {state} at {its} deadline of {seconds}" + _last_operation(outcome, it)
        case Stopped():
            if outcome.because == SIMULATION_ENDED:
                return f"{was} stopped"
            return f"{was} still running when {outcome.because}, and {was} stopped" + _last_operation(outcome, it)
        case Deadlocked():
            return f"deadlocked: {_wait(outcome.waits, it)}"


def _death(outcome: Died, was: str = "was", it: str = "it") -> str:
    if outcome.signal is None and outcome.exit_code is None:
        return outcome.exit_note or "ended in an unknown way"
    exited = f"exited with code {outcome.exit_code} before {it} finished"
    if outcome.signal is not None:
        exited = f"{was} killed by {outcome.signal}"
    return f"{exited}: {outcome.exit_note}" if outcome.exit_note else exited


def _last_operation(outcome: Outcome, it: str) -> str:
    if isinstance(outcome, Raised) and outcome.kind.endswith("PeerLost"):  # a simulated rank; its message says where
        return ""
    if isinstance(outcome, Ended) and outcome.waits:
        return f"; {_wait(outcome.waits, it)}"
    if outcome.collectives:
        return f"; last collective entered: {outcome.collectives[-1]}"
    return f"; {it} entered no collective"


def _wait(waits: str, it: str) -> str:
    return f"they wait{waits.removeprefix('waits')}" if it == "they" else f"it {waits}"


def _describe_root(root: Outcome) -> str:
    """Return one line on the root cause; for a deadlock, the whole chain of ranks that wait for each other."""
    return f"deadlocked: it {root.chain}" if isinstance(root, Deadlocked) else describe_outcome(root)


def _disagreement(outcomes: Sequence[Outcome]) -> str | None:
    """Return a sentence if ranks failed only because they did not do the same."""
    if isinstance(root_cause(outcomes), Died | Ended) or is_consequence(root_cause(outcomes)):
        return _skip_disagreement(outcomes) or operation_disagreement(outcomes)
    return None


def _skip_disagreement(outcomes: Sequence[Outcome]) -> str | None:
    """Return a sentence if ranks failed only because they waited for a rank that skipped."""
    skipped = [outcome for outcome in outcomes if isinstance(outcome, Skipped)]
    failed = failures(outcomes)
    if not skipped or not all(is_consequence(outcome) for outcome in failed):
        return None
    others = rank_list(sorted(outcome.rank for outcome in failed))
    return (
        f"the ranks disagree: rank {skipped[0].rank} {describe_outcome(skipped[0])}, while {others} continued and "
        "waited for it; make the same decision on every rank, or exchange it in a collective first"
    )


def details(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the traceback or the Python stacks of each rank that failed, root cause first.

    If several ranks raised the same, the first one's traceback stands for all. A rank that failed because a peer left
    is left out.
    """
    first: dict[str, Failure] = {}
    failed = failures(outcomes)
    for outcome in failed:
        if not peer_left(outcome):
            text = describe_outcome(outcome) if len(failed) <= _GROUPS_SHOWN else failure_origin(outcome)
            first.setdefault(text if isinstance(outcome, Raised) else f"rank {outcome.rank}", outcome)
    texts = [
        (outcome.rank, "traceback", outcome.traceback)
        if isinstance(outcome, Raised)
        else (outcome.rank, "Python stacks", outcome.stack)
        for outcome in first.values()
    ]
    return [_section(f"rank {rank}", title, text) for rank, title, text in texts if text.strip()]


def operations(outcomes: Sequence[Outcome]) -> list[tuple[str, str, str]]:
    """Return (title, ranks, text) with the timelines of observed ranks or the last collectives of others.

    Ranks with the same text share an entry. The last collectives are shown if a rank died or was ended, and a rank
    entered more than the one that its line in the head names.
    """
    if any(outcome.timeline for outcome in outcomes):
        told = _alike([outcome for outcome in outcomes if outcome.timeline], attrgetter("timeline"))
        return [("timeline", _ranks(alike), text) for text, alike in told.items()]
    ended = any(isinstance(outcome, Died | Ended) for outcome in outcomes)
    if not ended or not any(len(outcome.collectives) > 1 for outcome in outcomes):
        return []
    told = _alike(outcomes, _collectives_text)
    return [("last collectives", _ranks(alike), text) for text, alike in told.items()]


def _collectives_text(outcome: Outcome) -> str:
    left_out = max(0, len(outcome.collectives) - _COLLECTIVES_SHOWN)
    return "\n".join([*(["..."] if left_out else []), *map(str, outcome.collectives[left_out:])]) or "none"


def _alike(outcomes: Iterable[Outcome], text_of: Callable[[Outcome], str]) -> dict[str, list[Outcome]]:
    """Return the outcomes that have the same text, by that text."""
    alike: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        alike.setdefault(text_of(outcome), []).append(outcome)
    return alike


def _ranks(outcomes: Iterable[Outcome]) -> str:
    return rank_list(outcome.rank for outcome in outcomes)


def _section(ranks: str, title: str, text: str) -> str:
    return f"---- {ranks}: {title} ----\n{text.rstrip()}"
