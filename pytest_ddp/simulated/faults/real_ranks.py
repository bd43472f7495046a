"""Makes crashes, delays and partitions happen on real ranks whose process groups are observed."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.recording import current
from pytest_ddp.observed.recording.call import Call
from pytest_ddp.planning.faults import Crash, Delay, Fault, Partition
from pytest_ddp.simulated.faults.network_faults import Separation

_TURN = 0.1  # seconds


@contextmanager
def injected(faults: Sequence[Fault]) -> Iterator[None]:
    """Let the faults of a plan happen on this rank while the block runs. Enter it on every rank.

    A crash kills the process of the rank by SIGKILL. Operations are counted from when the group was made.

    Raises:
        UsageError: if the test has no `@distributed(observe=True)`, or if the plan has another kind of fault.
    """
    if others := [fault for fault in faults if not isinstance(fault, Crash | Delay | Partition)]:
        raise UsageError(f"real ranks can crash, be late, and lose one another; only simulated ranks can do {others}")
    record: Any = current.record()
    issue = record.issue
    separations = [Separation(fault) for fault in faults if isinstance(fault, Partition)]

    def issue_with_faults(call: Call, sequence: int) -> Any:
        __tracebackhide__ = True
        rank, name = dist.get_rank(), f"{call.operation.name}#{sequence}"
        for fault in faults:
            if isinstance(fault, Crash | Delay) and (fault.rank, fault.at) == (rank, name):
                _happen(fault)
        for separation in separations:
            separation.check(rank, name, call.ranks if call.peer is None else (rank, call.peer))
        return issue(call, sequence)

    record.issue = issue_with_faults
    try:
        yield
    finally:
        del record.issue


def _happen(fault: Crash | Delay) -> None:
    if isinstance(fault, Delay):
        time.sleep(fault.turns * _TURN)
    else:
        os.kill(os.getpid(), signal.SIGKILL)
