"""Describes a run that did not end: an exception in the submission, a rank that died, a hang."""

import re
from pathlib import Path

from conformance.diagnosis.advice import advise
from conformance.execution.outcome import Broken
from conformance.scenarios.drawn import Drawn
from conformance.scenarios.scenario import Scenario
from conformance.submissions.location import Location
from pytest_ddp.errors import ProtocolError
from pytest_ddp.outcomes.failure import headline
from pytest_ddp.outcomes.hang_diagnosis import describe_hang
from pytest_ddp.outcomes.outcome import Deadlocked, Died, Raised, TimedOut
from pytest_ddp.planning.world import World

_OUTPUT_LINES = 8
_MESSAGE_LINES = 4  # of an exception, after the first
_REPLACED = "ReplacedError"  # see `conformance.ranks.integrity`
_NOT_THEIRS = ("/conformance/ranks/", "/conformance/components/", "/torch/distributed/")
_OF_NO_LINE = ("/conformance/", "/torch/distributed/")  # a rank in there does not stand in the submission's line
_FRAME = re.compile(r'^ +File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_EVENT_WORDS = {
    "SetOption": "a write to `optimizer.param_groups`",
    "Decay": "making a scheduler for the optimizer",
    "OneCycle": "making a scheduler for the optimizer",
    "AddGroup": "`add_param_group`",
    "Save": "`state_dict`",
    "SaveAndLoad": "`state_dict` and `load_state_dict`",
    "LoadWeights": "`load_state_dict` of the wrapped model",
    "Unfreeze": "`requires_grad_()`",
    "Freeze": "`requires_grad_()`",
}
_ENDLESS = (
    "No rank had entered a collective. Is there a loop that does not end, or a loop whose time grows with the square "
    "of the number of elements?"
)
_STANDS = (
    "Rank {rank} did not come back from line {line} of {file}, in `{function}`, and waited for no other rank there. "
    "Does this line sleep, take a lock, or loop without end, or for a time that grows with the square of the number of "
    "elements?"
)
_WAITING = (
    "Most often a rank waits for a collective which others never enter. Do all ranks launch the same collectives in "
    "the same order, whichever gradients or parameters they have? The order of a set differs between ranks."
)
_DEATHS = {  # by signal
    "SIGABRT": "gloo ends a process whose tensor in a collective has another size than on the other ranks. Do all "
    "ranks give tensors of the same sizes, in the same order, to their collectives?",
    "SIGKILL": "Something else than the rank's own code killed it: the system, as memory was used up, or a process "
    "of the submission.",
    "SIGXFSZ": "The rank wrote a file beyond the limit of its size (--isolation).",
    None: "The rank ended its own process, by `os._exit` or the like. A rank must not end its process.",
}


def describe_crash(broken: Broken, drawn: Drawn) -> str:
    """Return what happened, on which rank and where, with the submission's own part of the traceback."""
    root = broken.root
    lines = [headline(broken.outcomes, World(len(broken.outcomes)))]
    if isinstance(root, Raised):
        first, *others = root.message.strip().splitlines() or [""]
        lines[0] = f"Rank {root.rank} raised {root.kind} {_place(broken, drawn)}: {first}"
        if root.kind == _REPLACED:
            lines[0] = first
        lines += [root.traceback, *(f"  {line}" for line in others[:_MESSAGE_LINES])]
    elif isinstance(root, Died | TimedOut | Deadlocked):
        frames = root.stack.rstrip().splitlines()
        lines += [line for line in frames if not any(part in line for part in _NOT_THEIRS)]
        lines += [f"  | {line}" for line in root.output.strip().splitlines()[-_OUTPUT_LINES:]]
    return "\n".join(line for line in lines if line)


def advise_on_crash(broken: Broken, drawn: Drawn, location: Location) -> str:
    """Return the most frequent cause of such a crash and what to do about it; empty if there is none to name."""
    match root := broken.root:
        case TimedOut() if standing := _standing(broken, location):
            return standing
        case TimedOut() if not any(one.collectives for one in broken.outcomes):
            return _ENDLESS
        case TimedOut() | Deadlocked():
            return _WAITING
        case Died():
            return _DEATHS.get(root.signal, "")
        case Raised(kind=ProtocolError.__name__):
            return "The submission wrote to the connection between the rank and the judge, which it did not open."
        case Raised():
            alike = [isinstance(one, Raised) and one.message == root.message for one in broken.outcomes]
            return advise(root.kind, root.message, drawn, on_all_ranks=all(alike))
        case _:
            return ""


def _standing(broken: Broken, location: Location) -> str:
    """Name the line of the submission in which a rank stood that waited for no other rank; empty if none did."""
    if describe_hang(broken.outcomes):
        return ""
    for outcome in broken.outcomes:
        line = _own_line(outcome.stack, location) if isinstance(outcome, TimedOut) and not outcome.waits else None
        if line:
            return _STANDS.format(rank=outcome.rank, **line.groupdict() | {"file": Path(line["file"]).name})
    return ""


def _own_line(stack: str, location: Location) -> re.Match[str] | None:
    """Return the innermost frame of the main thread that is in the submission's files, unless it called one of ours."""
    for frame in _FRAME.finditer(stack[max(0, stack.find("Current thread")) :]):
        if frame["file"].startswith(tuple(f"{root}/" for root in location.import_roots)):
            return frame
        if any(part in frame["file"] for part in _OF_NO_LINE):
            return None
    return None


def _place(broken: Broken, drawn: Drawn) -> str:
    where = broken.place
    if where is None:
        return "outside its run"
    stage, step = where
    if step is None or not isinstance(drawn, Scenario):
        return f"in {stage}"
    if stage.startswith("a change of the optimizer"):
        kinds = [type(event).__name__ for event in drawn.events(step)]
        stage = " or ".join(_EVENT_WORDS[kind] for kind in kinds if kind in _EVENT_WORDS) or stage
    return f"in {stage}, at step {min(step + 1, drawn.steps)} of {drawn.steps}"
