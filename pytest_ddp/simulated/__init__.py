"""Ranks simulated in one process: exact, deterministic, as many as fit into memory.

from pytest_ddp.simulated import simulate
run = simulate(function, 256)
run.raise_problem()
"""

from pytest_ddp.simulated.job import Job, file_operations_of, operations_of, run_job
from pytest_ddp.simulated.network import Event
from pytest_ddp.simulated.operation import Launch
from pytest_ddp.simulated.problems import (
    Deadlock,
    LostMessage,
    Mismatch,
    PeerLost,
    Problem,
    ProblemFound,
    RankStopped,
    SharedTensor,
    TensorWithGaps,
    UnfinishedCollective,
    UseBeforeWait,
    WriteInFlight,
)
from pytest_ddp.simulated.reductions import Reduction
from pytest_ddp.simulated.schedule import Clamped, Option, Recorded, Schedule
from pytest_ddp.simulated.simulation import simulate
from pytest_ddp.simulated.world import BACKEND, SimulatedWorld, Simulation

__all__ = [
    "BACKEND",
    "Clamped",
    "Deadlock",
    "Event",
    "Job",
    "Launch",
    "LostMessage",
    "Mismatch",
    "Option",
    "PeerLost",
    "Problem",
    "ProblemFound",
    "RankStopped",
    "Recorded",
    "Reduction",
    "Schedule",
    "SharedTensor",
    "SimulatedWorld",
    "Simulation",
    "TensorWithGaps",
    "UnfinishedCollective",
    "UseBeforeWait",
    "WriteInFlight",
    "file_operations_of",
    "operations_of",
    "run_job",
    "simulate",
]
