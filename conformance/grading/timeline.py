"""What each rank did in the last step of a failing run, in a few words each: for a picture in the report."""

from conformance.execution.outcome import Execution, Observed
from conformance.protocol.messages import Happening, Observation

_MOST = 40  # of a rank
_WORDS = {"began": "backward", "returned": "backward ends", "finished": "after_backward ends"}


def timeline(execution: Execution) -> tuple[tuple[str, ...], ...]:
    """Return, by rank, what happened in the last step, in order; empty if the run was no training, or broke."""
    if not isinstance(execution, Observed):
        return ()
    observations = [one for one in execution.answers[-1] if isinstance(one, Observation) and one.happenings]
    return tuple(tuple(map(_words, seen.happenings[-1][:_MOST])) for seen in observations)


def _words(happening: Happening) -> str:
    match happening.what:
        case "launched":
            return f"{happening.op} {happening.bytes} B"
        case "waited":
            return f"wait {happening.number}"
        case "reached":
            return f"layer {happening.layer}"
    return _WORDS[happening.what]
