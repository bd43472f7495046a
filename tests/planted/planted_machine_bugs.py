"""Bugs planted in right submissions that take a rank's place on its machine for its rank."""

from bug import Bug

_RANK, _LOCAL_RANK = "dist.get_rank()", '__import__("os").environ["LOCAL_RANK"]'
_WORDS = "is a rank's place on its own"
MACHINE_BUGS = [
    Bug(
        "naive_ddp",
        " / dist.get_world_size()",
        ' / int(__import__("os").environ["LOCAL_WORLD_SIZE"])',
        "wraps_on_two_machines",
        "`LOCAL_WORLD_SIZE` counts the ranks there",
    ),
    Bug(
        "sharded_optimizer",
        f"self.owner[p] == {_RANK}",
        f"str(self.owner[p]) == {_LOCAL_RANK}",
        "steps_on_two_machines",
        _WORDS,
    ),
    Bug(
        "fsdp",
        f"flat.chunk(dist.get_world_size())[{_RANK}]",
        f"flat.chunk(dist.get_world_size())[int({_LOCAL_RANK})]",
        "shards_on_two_machines",
        _WORDS,
    ),
    Bug("loader_generator", f"seed + {_RANK}", f"seed + int({_LOCAL_RANK})", "draws_on_two_machines", _WORDS),
    Bug("checkpoint", f"if {_RANK} == 0:", f'if {_LOCAL_RANK} == "0":', "writes_on_two_machines", _WORDS),
]
