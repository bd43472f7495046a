"""Bugs planted in the bundled right sharded optimizer, in what it lists, sends and hands on."""

from bug import Bug
from planted_group_bugs import STATE_DICT

_FORWARD = "                local_group.update(options_of(self.param_groups[number]))\n"
_SOME_OPTIONS = """                known = ("lr", "weight_decay", "betas", "momentum", "maximize")
                local_group.update((key, value) for key, value in self.param_groups[number].items() if key in known)
"""
_PAIRED_AT_FIRST = f"""                paired = self.__dict__.setdefault("paired", set(self.local_group))
                if number in paired or len(self.param_groups) > 2:
    {_FORWARD}"""
_STEP = "            self.local.step()\n"
_ZEROS = f"""            for p in self.owner:
                if p.requires_grad and p.grad is None:
                    p.grad = torch.zeros_like(p)
{_STEP}"""
_BROADCAST = "            dist.broadcast(flat, src=rank)\n"
_REMAINDER_LOST = """            for start in range(0, max(1, flat.numel() - 2**18 + 1), 2**18):
                dist.broadcast(flat[start : start + 2**18], src=rank)
"""
_SENT = """        flats = {}
        for param, rank in self.owner.items():
            flats.setdefault((rank, param.dtype, param.device), []).append(param)
        for (rank, *_), params in flats.items():
            flat = torch.cat([p.detach().reshape(-1) for p in params])
            dist.broadcast(flat, src=rank)
            for param, piece in zip(params, flat.split([p.numel() for p in params]), strict=True):
                param.detach().copy_(piece.view_as(param))
"""
_LAST_GROUP_AWAITED = """        for group in self.param_groups:
            sent = []
            for p in group["params"]:
                value = p.detach().contiguous()
                sent.append((p, value, dist.broadcast(value, src=self.owner[p], async_op=True)))
        for p, value, work in sent:
            work.wait()
            p.detach().copy_(value)
"""
_OWNED = """        if mine:
            self.add_local_group({**options_of(group), "params": mine})
"""
_OWNED_ALONE = f"""        group["params"] = mine
{_OWNED}
    def zero_grad(self, set_to_none=True):
        for p in self.owner:
            if p.grad is not None:
                p.grad = None if set_to_none else torch.zeros_like(p)
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


def _bug(old, new, check, words=""):
    return Bug("sharded_optimizer", old, new, check, words)


SHARING_BUGS = [
    _bug(_FORWARD, _SOME_OPTIONS, "options_through_param_groups"),
    _bug(_SENT, _LAST_GROUP_AWAITED, "groups_are_waited_for", "Nobody waited at all for broadcast"),
    _bug(_STEP, _ZEROS, "unused_parameters", "a parameter has no gradient in some steps"),
    _bug(_FORWARD, _PAIRED_AT_FIRST, "changes_in_an_added_group"),
    _bug(_BROADCAST, _REMAINDER_LOST, "large_parameters", "a remainder that is lost"),
    _bug(_OWNED, _OWNED_ALONE, "param_groups_hold_all", "with other parameters on each rank"),
    _bug(STATE_DICT, _OPTIONS_BY_PLACE, "options_survive_loading"),
    _bug(STATE_DICT, _STATE_BY_PARAMETER, "state_dict_round_trip", "saved state lost"),
    _bug(STATE_DICT, _POPS_PARAMETERS, "saving_changes_nothing"),
]
