"""Faults on ranks, from plain data: crashes, delays, partitions, flipped bits, restarts.

from pytest_ddp.simulated import run_job
from pytest_ddp.simulated.faults import Crash
job = run_job(train, 4, faults=[Crash(rank=2, at="all_reduce#7")])
"""

from pytest_ddp.planning.faults import Corrupt, Crash, Delay, Fault, Partition, Rejoin
from pytest_ddp.simulated.faults.real_ranks import injected
from pytest_ddp.simulated.problems import RankKilled

__all__ = [
    "Corrupt",
    "Crash",
    "Delay",
    "Fault",
    "Partition",
    "RankKilled",
    "Rejoin",
    "injected",
]
