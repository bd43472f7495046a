"""The outcomes of simulated ranks, which one process answers for all of them."""

from dataclasses import replace
from typing import Any

from pytest_ddp.outcomes.outcome import Outcome, Raised, Returned, Skipped, Stopped
from pytest_ddp.protocol.messages import Answer, Decoder, SimulatedRun


def each_rank(outcome: Outcome, size: int) -> list[Outcome]:
    """Return one outcome per rank, of what became of their process.

    If the process died, ran until its deadline or failed before the ranks ran, each rank has its outcome. What the
    process printed is rank 0's.
    """
    if not isinstance(outcome, Returned):
        return [outcome if rank == 0 else replace(outcome, rank=rank, output="") for rank in range(size)]
    run, *answers = Decoder().feed(outcome.body)
    schedule = run.schedule if isinstance(run, SimulatedRun) else ""
    return [_outcome(answer, schedule, outcome.output if answer.number == 0 else "") for answer in answers]


def _outcome(answer: Answer, schedule: str, output: str) -> Outcome:
    fields: dict[str, Any] = {"rank": answer.number, "seconds": answer.seconds, "schedule": schedule, "output": output}
    if answer.outcome == "returned":
        return Returned(**fields, body=answer.body)
    if answer.outcome == "skipped":
        return Skipped(**fields, reason=answer.message, body=answer.body)
    if answer.outcome == "stopped":
        return Stopped(**fields, because=answer.message)
    return Raised(**fields, kind=answer.kind, message=answer.message, traceback=answer.traceback, body=answer.body)
