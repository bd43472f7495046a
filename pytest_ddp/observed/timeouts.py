"""After how long torch itself gives up a wait."""

from datetime import timedelta

from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import GroupName


def timeout_of(group: str, asked: timedelta | None) -> timedelta:
    """Return after how long a wait in the group of that name fails: as was asked for, else as the group says."""
    if asked is not None:
        return asked
    found = distributed_c10d._resolve_process_group(GroupName(group))  # noqa: SLF001  torch's own way
    backend = found._get_backend(found._device_types[0])  # noqa: SLF001  no public way
    timeout: timedelta = backend.options._timeout  # noqa: SLF001  likewise
    return timeout
