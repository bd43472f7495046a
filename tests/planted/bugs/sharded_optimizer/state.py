"""Bugs in `state_dict` and `load_state_dict`."""

from functools import partial

from bug import Bug

_bug = partial(Bug, "sharded_optimizer")
_SHARDED = "sharded_optimizer"
_STATE_ALONE = """    def state_dict(self):
        return {"state": {} if self.local is None else self.local.state_dict()["state"]}

    def load_state_dict(self, state_dict):
        if self.local is not None:
            self.local.load_state_dict({**self.local.state_dict(), "state": state_dict["state"]})
            self.local_group = dict(zip(self.local_group, self.local.param_groups, strict=True))
"""
_STATE_AND_OPTIONS = """    def state_dict(self):
        local = None if self.local is None else self.local.state_dict()
        return {"local": local, "options": [options_of(group) for group in self.param_groups]}

    def load_state_dict(self, state_dict):
        for group, options in zip(self.param_groups, state_dict.pop("options"), strict=True):
            group.update(options)
        if self.local is not None:
            self.local.load_state_dict(state_dict["local"])
            self.local_group = dict(zip(self.local_group, self.local.param_groups, strict=True))
"""
_STATE_OF_OLD_GROUPS = """    def state_dict(self):
        options = [options_of(group) for group in self.param_groups]
        return {"local": None if self.local is None else self.local.state_dict(), "options": options}

    def load_state_dict(self, state_dict):
        for group, options in zip(self.param_groups, state_dict["options"], strict=True):
            group.update(options)
        if self.local is not None:
            self.local.load_state_dict(state_dict["local"])
            for number, group in zip(self.local_group, self.local.param_groups, strict=True):
                group.update(options_of(self.param_groups[number]))
"""
_STATE_OF_KNOWN_OPTIONS = (
    _STATE_OF_OLD_GROUPS.replace("[options_of(group) for", "[dict(options_of(group)) for")
    .replace("group.update(options)", "group.update((name, options[name]) for name in self.defaults)")
    .replace(
        "            for number, group in zip(self.local_group, self.local.param_groups, strict=True):\n"
        "                group.update(options_of(self.param_groups[number]))\n",
        "            self.local_group = dict(zip(self.local_group, self.local.param_groups, strict=True))\n",
    )
)
_STATE_OF_ONE_GROUP = """    def state_dict(self):
        first = [] if self.local is None else self.local.param_groups[0]["params"]
        return {"state": [dict(self.local.state[p]) for p in first]}

    def load_state_dict(self, state_dict):
        first = [] if self.local is None else self.local.param_groups[0]["params"]
        self.local.state.update(zip(first, state_dict["state"], strict=True))
"""
_STATE_OF_ALL = """    def state_dict(self):
        number = {p: at for at, p in enumerate(p for group in self.param_groups for p in group["params"])}
        own = {} if self.local is None else {number[p]: state for p, state in self.local.state.items()}
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, own)
        everything = {at: state for part in parts for at, state in part.items()}
        return {"state": everything, "param_groups": super().state_dict()["param_groups"]}

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        for p, rank in self.owner.items():
            if rank == dist.get_rank() and p in self.state:
                self.local.state[p] = self.state[p]
"""
_STATE_DICT = """    def state_dict(self):
        raise RuntimeError("ShardedOptimizer cannot be saved: every rank holds the state of its own parameters only")

    def load_state_dict(self, state_dict):  # noqa: ARG002  # torch's signature
        raise RuntimeError("ShardedOptimizer cannot load a state: every rank holds that of its own parameters only")
"""
_OPTIONS_BY_PLACE = """    def state_dict(self):
        for number, local_group in self.local_group.items():
            local_group.update(options_of(self.param_groups[number]))
        return None if self.local is None else self.local.state_dict()

    def load_state_dict(self, state_dict):
        if self.local is not None:
            self.local.load_state_dict(state_dict)
            self.local_group = dict(zip(self.local_group, self.local.param_groups, strict=True))
            for group, local_group in zip(self.param_groups, self.local.param_groups):
                group.update(options_of(local_group))
"""
_POPS_PARAMETERS = """    def state_dict(self):
        local = None if self.local is None else self.local.state_dict()
        for group in self.param_groups:
            group.pop("params")
        return {"local": local, "options": [dict(group) for group in self.param_groups]}

    def load_state_dict(self, state_dict):
        for group, options in zip(self.param_groups, state_dict["options"], strict=True):
            group.update(options)
        if self.local is not None:
            self.local.load_state_dict(state_dict["local"])
            self.local_group = dict(zip(self.local_group, self.local.param_groups, strict=True))
"""
_STATE_BY_PARAMETER = """    def state_dict(self):
        state = {} if self.local is None else dict(self.local.state)
        return {"state": state, "options": [options_of(group) for group in self.param_groups]}

    def load_state_dict(self, state_dict):
        for group, options in zip(self.param_groups, state_dict["options"], strict=True):
            group.update(options)
        for p, rank in self.owner.items():
            if rank == dist.get_rank() and p in state_dict["state"]:
                self.local.state[p] = state_dict["state"][p]
"""
_IN_ORDER_OF_APPEARANCE = """    def state_dict(self):
        return [] if self.local is None else list(self.local.state.values())

    def load_state_dict(self, state_dict):
        mine = [p for group in self.local.param_groups for p in group["params"]] if self.local else []
        for p, state in zip(mine, state_dict):
            self.local.state[p] = state
"""
_TWICE_AFTER_LOADING = """    def add_local_group(self, group):
        if self.local is None:
            self.local = self.optimizer_cls([group], **self.kwargs)
            self.groups = []
        else:
            self.local.add_param_group(group)
        self.groups.append(self.local.param_groups[-1])
        self.local_group[len(self.param_groups) - 1] = self.local.param_groups[-1]

    def state_dict(self):
        local = None if self.local is None else self.local.state_dict()
        return {"local": local, "options": [options_of(group) for group in self.param_groups]}

    def load_state_dict(self, state_dict):
        for group, options in zip(self.param_groups, state_dict["options"]):
            group.update(options)
        if self.local is not None:
            self.local.load_state_dict(state_dict["local"])
            self.groups = self.local.param_groups
            self.local_group = dict(zip(self.local_group, self.groups))
"""
BUGS = [
    _bug(
        _STATE_DICT,
        _STATE_AND_OPTIONS.replace("None if self.local is None else ", "").replace(".pop", ".get"),
        "state_dict[round_trip]",
        "'NoneType' object has no attribute",
    ),
    _bug(_STATE_DICT, "", "state_dict[round_trip]", "saved state lost"),
    _bug(_STATE_DICT, _STATE_OF_ONE_GROUP, "state_dict[round_trip]", ""),
    _bug(_STATE_DICT, _STATE_OF_OLD_GROUPS, "options[after_loading]", "change of an option ignored"),
    _bug(_STATE_DICT, _STATE_ALONE, "state_dict[options]", "saved options lost"),
    _bug(_STATE_DICT, _STATE_AND_OPTIONS, "arguments_stay", "`['options']`"),
    _bug(_STATE_DICT, _STATE_OF_ALL, "state_is_sharded[after_loading]", "drop the rest"),
    _bug(_STATE_DICT, _STATE_OF_KNOWN_OPTIONS, "state_dict[other_keys]", "initial_lr"),
    _bug(_STATE_DICT, _OPTIONS_BY_PLACE, "state_dict[options]"),
    _bug(_STATE_DICT, _STATE_BY_PARAMETER, "state_dict[round_trip]", "saved state lost"),
    _bug(_STATE_DICT, _POPS_PARAMETERS, "saving_changes_nothing"),
    Bug(_SHARDED, _STATE_DICT, _IN_ORDER_OF_APPEARANCE, "state_dict[round_trip]"),
    Bug(_SHARDED, _STATE_DICT, _TWICE_AFTER_LOADING, "groups[added_after_loading]"),
]
