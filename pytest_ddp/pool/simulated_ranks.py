"""The outcomes of simulated ranks, which one process answers for all of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_ddp.outcomes.outcome import SIMULATION_ENDED, Outcome, Raised, Returned, Skipped, Stopped
from pytest_ddp.protocol.messages import Answer, Decoder, SimulatedRun


def each_rank(of_process: Sequence[Outcome], size: int) -> list[Outcome]:
    """Return one outcome per rank, of what became of their process; none if there is no process any more.

    If the process died, ran until its deadline or failed before the ranks ran, each rank has its outcome. What the
    process printed, and its stacks, are rank 0's.
    """
    if not of_process:
        return []
    outcome = of_process[0]
    if not isinstance(outcome, Returned):
        without: dict[str, Any] = {name: "" for name in ("output", "stack") if hasattr(outcome, name)}
        return [outcome, *(replace(outcome, rank=rank, **without) for rank in range(1, size))]
    run, *answers = Decoder().feed(outcome.body)
    schedule = run.schedule if isinstance(run, SimulatedRun) else ""
    return [_outcome(answer, schedule, outcome.output if answer.number == 0 else "") for answer in answers]


def _outcome(answer: Answer, schedule: str, output: str) -> Outcome:
    fields: dict[str, Any] = {"rank": answer.number, "seconds": answer.seconds, "schedule": schedule, "output": output}
    if answer.outcome == "returned":
        return Returned(**fields, body=answer.body)
    if answer.outcome == "killed":
        return Returned(**fields, killed=True)
    if answer.outcome == "skipped":
        return Skipped(**fields, reason=answer.message, body=answer.body)
    if answer.outcome == "stopped":
        return Stopped(**fields, because=SIMULATION_ENDED)
    return Raised(**fields, kind=answer.kind, message=answer.message, traceback=answer.traceback, body=answer.body)
