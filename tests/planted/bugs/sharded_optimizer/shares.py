"""Bugs in how state is shared out over the ranks."""

from functools import partial

from bug import Bug

_bug = partial(Bug, "sharded_optimizer")
_GROUP = "        group = self.param_groups[-1]\n"
_FEWEST = "self.bytes_on_rank.index(min(self.bytes_on_rank))"
BUGS = [
    _bug("if self.owner[p] == dist.get_rank()]", "]", "state_is_sharded", "only the parameters that the rank owns"),
    _bug(
        "if self.owner[p] == dist.get_rank()]",
        "if self.owner[p] == dist.get_rank() or p is max(self.owner, key=torch.numel)]",
        "state_is_sharded",
        "only the parameters that the rank owns",
    ),
    _bug("self.bytes_on_rank.index(min(self.bytes_on_rank))", "0", "state_is_balanced", "the fewest bytes so far"),
    _bug(
        """param in sorted(group["params"], key=lambda p: -p.numel() * p.element_size()):
            rank = self.bytes_on_rank.index(min(self.bytes_on_rank))""",
        """number, param in enumerate(group["params"]):
            rank = number % dist.get_world_size()""",
        "state_is_balanced",
        "the fewest bytes so far",
    ),
    _bug(
        "if self.owner[p] == dist.get_rank()]",
        "if self.owner[p] == dist.get_rank() or len(self.param_groups) > 1]",
        "state_is_sharded[groups]",
        "deal out those of each group",
    ),
    _bug(
        _GROUP,
        f"{_GROUP}        self.bytes_on_rank = [0] * dist.get_world_size()\n",
        "state_is_balanced[frozen_or_in_groups]",
        "dealt out from rank 0 anew",
    ),
    _bug(
        "self.bytes_on_rank.index(min(self.bytes_on_rank))",
        "len(self.owner) % dist.get_world_size()",
        "state_is_balanced[frozen_or_in_groups]",
        "with the bytes that each rank has so far",
    ),
    _bug(
        _FEWEST,
        f"dist.get_world_size() - 1 if len(self.param_groups) > 1 else {_FEWEST}",
        "state_is_balanced[two_groups]",
        "in a second group, given at once or by `add_param_group`",
    ),
    _bug(
        _FEWEST,
        f"{_FEWEST} if param.requires_grad else 0",
        "state_is_balanced[frozen_or_in_groups]",
        "Deal out frozen parameters like the others",
    ),
    _bug(
        '        mine = [p for p in group["params"] if self.owner[p] == dist.get_rank()]\n',
        '        stateless = self.kwargs.get("momentum") is None and "SGD" in self.optimizer_cls.__name__\n'
        '        mine = [p for p in group["params"] if stateless or self.owner[p] == dist.get_rank()]\n',
        "state_is_sharded[groups]",
        "nothing is sharded",
    ),
]
