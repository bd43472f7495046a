"""Bugs of code that takes ranks to agree on the `hash` of a text: forks of one process do, real ranks do not."""

from bug import Bug

_TRAINABLE = "        return [p for p in self.module.parameters() if p.requires_grad]\n"
_IN_A_SET = """        named = dict(self.module.named_parameters())
        return [named[name] for name in set(named) if named[name].requires_grad]
"""
_LAUNCH = "    def launch(self):\n"
_SORTED = f'{_LAUNCH}        self.params.sort(key=lambda p: hash(f"{{p.shape}}"))\n'
_OWNER = "            rank = self.bytes_on_rank.index(min(self.bytes_on_rank))\n"
_DEALT = '            rank = hash(f"parameter {len(self.owner)}") % dist.get_world_size()\n'
_WORDS = "It goes well where all ranks are forks of one process"

HASH_BUGS = [
    Bug("flat_ddp", _TRAINABLE, _IN_A_SET, "gradients_averaged", _WORDS),
    Bug("ddp_bucketed", _LAUNCH, _SORTED, "gradients_averaged", _WORDS),
    Bug("sharded_optimizer", _OWNER, _DEALT, "runs_to_the_end", _WORDS),
]
