"""Bugs planted in the bundled right sharded optimizer in what it makes of options that change, and of a loss."""

from bug import Bug

_HAND_ON = "                local_group.update(options_of(self.param_groups[number]))\n"
_WHAT_IS_NOT_AS_MADE = """                made = self.__dict__.setdefault("made", {}).setdefault(number, options_of(local_group))
                options = options_of(self.param_groups[number]).items()
                local_group.update((name, value) for name, value in options if value != made.get(name))
"""
_ADD = "        super().add_param_group(param_group)\n"
_ADD_AT_THE_RATE_OF_THE_FIRST = f"""        if hasattr(self, "rate") and self.param_groups[0]["lr"] != self.rate:
            param_group.setdefault("lr", self.param_groups[0]["lr"])
{_ADD}        self.rate = getattr(self, "rate", self.param_groups[0]["lr"])
"""
_LOSS = "                loss = closure()\n"
_LOSS_OF_ALL = f"{_LOSS}                dist.all_reduce(loss)\n                loss /= dist.get_world_size()\n"
OPTION_BUGS = [
    Bug("sharded_optimizer", _HAND_ON, _WHAT_IS_NOT_AS_MADE, "lr_through_param_groups"),
    Bug("sharded_optimizer", _ADD, _ADD_AT_THE_RATE_OF_THE_FIRST, "added_groups_take_the_defaults"),
    Bug("sharded_optimizer", _LOSS, _LOSS_OF_ALL, "closure_beside_data_parallel", "expected the closure's"),
]
