"""Groups made beside the default one, of which a wrapper that is never closed leaves some."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch.distributed as dist


@contextmanager
def subgroups_destroyed() -> Iterator[None]:
    """Destroy, at the end of the block, the groups made in it."""
    made: list[dist.ProcessGroup] = []
    new_group = dist.new_group

    def make_noted_group() -> dist.ProcessGroup:
        made.append(new_group())
        return made[-1]

    with patch.object(dist, "new_group", make_noted_group):
        yield
    for group in made:
        dist.destroy_process_group(group)
