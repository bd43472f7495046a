"""Bugs planted in the bundled right sharded optimizer in what it keeps of groups, options and state."""

from bug import Bug

_FORWARD = "                local_group.update(options_of(self.param_groups[number]))\n"
_GROUP = "        group = self.param_groups[-1]\n"
_FLAT = "            flat = torch.cat([p.detach().reshape(-1) for p in params])\n"
_OWNERS_OF_ALL = "        ShardedOptimizer.owner = {}\n"
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
_CLOSURE_ON_OWN = """                whole = [group["params"] for group in self.param_groups]
                for group in self.param_groups:
                    group["params"] = [p for p in group["params"] if self.owner[p] == dist.get_rank()]
                loss = closure()
                for group, params in zip(self.param_groups, whole, strict=True):
                    group["params"] = params
"""
_MERGED = f"""            alike = self.__dict__.setdefault("alike", {{}})
            options = {{number: options_of(self.param_groups[number]) for number in self.local_group}}
            for number, local_group in self.local_group.items():
                number = alike.setdefault(number, max(n for n in options if options[n] == options[number]))
{_FORWARD}"""
_OF_THE_SAME_TYPE = """                changed = options_of(self.param_groups[number]).items()
                local_group.update((key, value) for key, value in changed if type(value) is type(local_group.get(key)))
"""
_ZEROS_AS_DEFAULTS = """                options = options_of(self.param_groups[number]).items()
                local_group.update((name, value or self.kwargs.get(name, value)) for name, value in options)
"""
_FEWEST = "self.bytes_on_rank.index(min(self.bytes_on_rank))"
_STATE_OF_ONE_GROUP = """    def state_dict(self):
        first = [] if self.local is None else self.local.param_groups[0]["params"]
        return {"state": [dict(self.local.state[p]) for p in first]}

    def load_state_dict(self, state_dict):
        first = [] if self.local is None else self.local.param_groups[0]["params"]
        self.local.state.update(zip(first, state_dict["state"], strict=True))
"""
_AS_MADE = f"""{_GROUP}        made = self.__dict__.setdefault("made", [])
        made.append(options_of(group))
        for one, options in zip(self.param_groups, made, strict=True):
            one.update(options)
"""
_TWO_AT_MOST = "self.local_group[min(1, len(self.param_groups) - 1)]"
_OPTIONS = f"""        if self.local is not None:
            for number, local_group in self.local_group.items():
{_FORWARD}"""
_OPTIONS_WITHOUT_CLOSURE = f"""        if self.local is not None:
            for number, local_group in self.local_group.items() if closure is None else ():
{_FORWARD}"""
_ZIPPED = """        if self.local is not None:
            for group, local_group in zip(self.param_groups, self.local.param_groups):
                local_group.update(options_of(group))
"""
_LR_OF_ALL = f"""        for group in self.param_groups:
            if group["lr"] != group.get("last_lr", group["lr"]):
                self.lr = group["lr"]
            group["last_lr"] = group["lr"]
{_OPTIONS}                local_group["lr"] = getattr(self, "lr", local_group["lr"])
"""
_OF_A_COPY = """            copies = self.__dict__.setdefault("copies", {})
            for p, rank in self.owner.items():
                if rank == dist.get_rank():
                    p.data.copy_(copies.setdefault(p, p.detach().clone()))
            self.local.step()
            copies.update((p, p.detach().clone()) for p in copies)
"""
_APART = f"""(rank, param.dtype, param.device), []).append(param)
        for (rank, *_), params in flats.items():
{_FLAT}"""
_OF_THE_FIRST = _APART.replace("param.dtype, ", "").replace("p.detach()", "p.detach().to(params[0].dtype)")
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
STATE_DICT = """    def state_dict(self):
        raise RuntimeError("ShardedOptimizer cannot be saved: every rank holds the state of its own parameters only")

    def load_state_dict(self, state_dict):  # noqa: ARG002  # torch's signature
        raise RuntimeError("ShardedOptimizer cannot load a state: every rank holds that of its own parameters only")
"""


def _bug(old, new, check, words=""):
    return Bug("sharded_optimizer", old, new, check, words)


GROUP_BUGS = [
    _bug(
        "if self.owner[p] == dist.get_rank()]",
        "if self.owner[p] == dist.get_rank() or len(self.param_groups) > 1]",
        "groups_are_sharded",
        "deal out those of each group",
    ),
    _bug(_GROUP, _AS_MADE, "groups_and_changes_together"),
    _bug("self.local_group[len(self.param_groups) - 1]", _TWO_AT_MOST, "groups_and_changes_together"),
    _bug(_OPTIONS, _OPTIONS_WITHOUT_CLOSURE, "groups_and_changes_together", "change of an option ignored"),
    _bug(
        _GROUP,
        f"{_GROUP}        self.bytes_on_rank = [0] * dist.get_world_size()\n",
        "groups_are_balanced_together",
        "dealt out from rank 0 anew",
    ),
    _bug(
        "self.bytes_on_rank.index(min(self.bytes_on_rank))",
        "len(self.owner) % dist.get_world_size()",
        "groups_are_balanced_together",
        "carry on, from one to the next",
    ),
    _bug(
        STATE_DICT,
        _STATE_AND_OPTIONS.replace("None if self.local is None else ", "").replace(".pop", ".get"),
        "state_of_ranks_without_parameters",
        "'NoneType' object has no attribute",
    ),
    _bug(
        "kwargs).defaults)\n",
        "kwargs).defaults)\n        if self.local is None:\n            self.add_local_group = lambda group: None\n",
        "small_groups_are_added",
        "",
    ),
    _bug(_OPTIONS, _ZIPPED, "groups_smaller_than_the_world", "first group's options everywhere"),
    _bug(_OPTIONS, _LR_OF_ALL, "changes_in_one_group", "change of one group made in all"),
    _bug(
        "        super().add_param_group(param_group)\n",
        "        self.count = sum(p.numel() for p in param_group['params'])\n"
        "        super().add_param_group(param_group)\n",
        "groups_of_generators",
        "",
    ),
    _bug(
        "        super().add_param_group(param_group)\n",
        "        self.changed = [self.defaults[key] for key in param_group if key != 'params']\n"
        "        super().add_param_group(param_group)\n",
        "groups_may_have_names",
        "KeyError",
    ),
    _bug("        self.owner = {}\n", _OWNERS_OF_ALL, "two_optimizers_side_by_side", "not in its class"),
    _bug(_APART, _OF_THE_FIRST, "mixed_dtypes"),
    _bug("            self.local.step()\n", _OF_A_COPY, "loaded_weights_are_the_start"),
    _bug(STATE_DICT, "", "state_dict_round_trip", "saved state lost"),
    _bug(STATE_DICT, _STATE_OF_ONE_GROUP, "state_dict_round_trip", ""),
    _bug(STATE_DICT, _STATE_OF_OLD_GROUPS, "options_change_after_loading", "change of an option ignored"),
    _bug(STATE_DICT, _STATE_ALONE, "options_survive_loading", "saved options lost"),
    _bug(STATE_DICT, _STATE_AND_OPTIONS, "loading_leaves_the_state_dict", "`['options']`"),
    _bug(STATE_DICT, _STATE_OF_ALL, "state_stays_sharded_after_loading", "drop the rest"),
    _bug(STATE_DICT, _STATE_OF_KNOWN_OPTIONS, "loading_keeps_what_others_keep_there", "initial_lr"),
    _bug(
        "                loss = closure()\n",
        _CLOSURE_ON_OWN,
        "closure_beside_data_parallel",
        "keep `param_groups` whole",
    ),
    _bug(
        f"            for number, local_group in self.local_group.items():\n{_FORWARD}", _MERGED, "changes_in_one_group"
    ),
    _bug(_FORWARD, _OF_THE_SAME_TYPE, "options_through_param_groups"),
    _bug(
        _FEWEST,
        f"dist.get_world_size() - 1 if len(self.param_groups) > 1 else {_FEWEST}",
        "two_groups_are_balanced",
        "in a second group, given at once or by `add_param_group`",
    ),
    _bug(
        _FEWEST,
        f"{_FEWEST} if param.requires_grad else 0",
        "unfrozen_parameters_are_balanced",
        "were frozen when the optimizer was made",
    ),
    _bug(
        '        mine = [p for p in group["params"] if self.owner[p] == dist.get_rank()]\n',
        '        stateless = self.kwargs.get("momentum") is None and "SGD" in self.optimizer_cls.__name__\n'
        '        mine = [p for p in group["params"] if stateless or self.owner[p] == dist.get_rank()]\n',
        "groups_are_sharded",
        "nothing is sharded",
    ),
    _bug(
        "            self.local.step()\n",
        '            if any(group["lr"] for group in self.local.param_groups):\n                self.local.step()\n',
        "lr_through_param_groups",
    ),
    _bug(_FORWARD, _ZEROS_AS_DEFAULTS, "param_groups_keep_options"),
]
