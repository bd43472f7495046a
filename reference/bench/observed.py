"""The default process group, replaced for a while by one that records every operation: pytest_ddp's observed group."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from reference.communication.process_group import cleanup

if TYPE_CHECKING:
    from pytest_ddp.observed.inspection.collectives import Collectives


@contextmanager
def observed_group() -> Iterator["Collectives"]:
    """Record the operations of the default group, and of groups made from it, while the block runs. A collective.

    The default group is left and joined again, before and after. So make whatever keeps a group inside the block. If
    the block raises an exception, the rank stays in the observed group.

    Yields:
        This rank's record.
    """
    from pytest_ddp.observed import collectives  # noqa: PLC0415  # needed here only
    from pytest_ddp.observed.recording.process_group import observe, stop_observing  # noqa: PLC0415
    from pytest_ddp.observed.recording.record import Monitor  # noqa: PLC0415

    store: Any = distributed_c10d._get_default_store()  # noqa: SLF001  # torch has no public name for it
    backend, rank, world_size = dist.get_backend(), dist.get_rank(), dist.get_world_size()

    def rejoin(name: str) -> None:
        dist.init_process_group(backend, store=dist.PrefixStore(name, store), rank=rank, world_size=world_size)

    cleanup()
    observe(Monitor())
    rejoin("observed")
    yield collectives()  # no `finally`: a rank that fails must report it, not wait for others that may never come
    cleanup()
    stop_observing()
    rejoin("after observing")
