"""Bugs in options that the user changes between steps, by hand or with a scheduler."""

from functools import partial

from bug import Bug

_bug = partial(Bug, "sharded_optimizer")
_SHARDED = "sharded_optimizer"
_FORWARD = "                local_group.update(options_of(self.param_groups[number]))\n"
_MERGED = f"""            alike = self.__dict__.setdefault("alike", {{}})
            options = {{number: options_of(self.param_groups[number]) for number in self.local_group}}
            for number, local_group in self.local_group.items():
                number = alike.setdefault(number, max(n for n in options if options[n] == options[number]))
{_FORWARD}"""
_OF_THE_SAME_TYPE = """                changed = options_of(self.param_groups[number]).items()
                local_group.update((key, value) for key, value in changed if type(value) is type(local_group.get(key)))
"""
_OPTIONS = f"""        if self.local is not None:
            for number, local_group in self.local_group.items():
{_FORWARD}"""
_LR_OF_ALL = f"""        for group in self.param_groups:
            if group["lr"] != group.get("last_lr", group["lr"]):
                self.lr = group["lr"]
            group["last_lr"] = group["lr"]
{_OPTIONS}                local_group["lr"] = getattr(self, "lr", local_group["lr"])
"""
_SOME_OPTIONS = """                known = ("lr", "weight_decay", "betas", "momentum", "maximize")
                local_group.update((key, value) for key, value in self.param_groups[number].items() if key in known)
"""
_PAIRED_AT_FIRST = f"""                paired = self.__dict__.setdefault("paired", set(self.local_group))
                if number in paired or len(self.param_groups) > 2:
    {_FORWARD}"""
_HAND_ON = "                local_group.update(options_of(self.param_groups[number]))\n"
_WHAT_IS_NOT_AS_MADE = """                self.made = getattr(self, "made", {})
                made = self.made.setdefault(number, options_of(local_group))
                options = options_of(self.param_groups[number]).items()
                local_group.update((name, value) for name, value in options if value != made.get(name))
"""
_ADD = "        super().add_param_group(param_group)\n"
_ADD_AT_THE_RATE_OF_THE_FIRST = f"""        if hasattr(self, "rate") and self.param_groups[0]["lr"] != self.rate:
            param_group.setdefault("lr", self.param_groups[0]["lr"])
{_ADD}        self.rate = getattr(self, "rate", self.param_groups[0]["lr"])
"""
_STEP = """        if self.local is not None:
            for number"""
_AT_ONCE_ALONE = f"""        if dist.get_world_size() == 1:
            self.local.step()
            return loss
{_STEP}"""
BUGS = [
    _bug(_FORWARD, "                pass\n", "options[lr]", "change of an option ignored"),
    _bug(
        _FORWARD,
        '                local_group["lr"] = self.param_groups[number]["lr"]\n',
        "options[others]",
        "only changes of lr take effect",
    ),
    _bug(
        _FORWARD,
        "                for key, value in options_of(self.param_groups[number]).items():\n"
        "                    assert key in local_group\n"
        "                    local_group[key] = value\n",
        "options[scheduler]",
        "AssertionError",
    ),
    _bug(
        "    return ShardedOptimizer(params, optimizer_cls, **kwargs)\n",
        "    class Plain:\n"
        "        def __init__(self):\n"
        "            self.inner = ShardedOptimizer(params, optimizer_cls, **kwargs)\n"
        "            self.step, self.zero_grad = self.inner.step, self.inner.zero_grad\n"
        "            self.add_param_group = self.inner.add_param_group\n\n"
        "    return Plain()\n",
        "options[lr]",
        "inherit from it",
    ),
    _bug(
        'optimizer_cls([{"params": []}], **kwargs).defaults)',
        '{"lr": optimizer_cls([{"params": []}], **kwargs).defaults["lr"]})',
        "options[one_cycle]",
        "give the inner optimizer's defaults",
    ),
    _bug(_OPTIONS, _LR_OF_ALL, "options[one_group]", "change of one group made in all"),
    _bug(
        f"            for number, local_group in self.local_group.items():\n{_FORWARD}", _MERGED, "options[one_group]"
    ),
    _bug(_FORWARD, _OF_THE_SAME_TYPE, "options[others]"),
    _bug(
        "            self.local.step()\n",
        '            if any(group["lr"] for group in self.local.param_groups):\n                self.local.step()\n',
        "options[lr]",
    ),
    _bug(_FORWARD, _SOME_OPTIONS, "options[others]"),
    _bug(_FORWARD, _PAIRED_AT_FIRST, "options[added_group]"),
    Bug(_SHARDED, _STEP, _AT_ONCE_ALONE, "options[lr]"),
    Bug(_SHARDED, _HAND_ON, _WHAT_IS_NOT_AS_MADE, "options[lr]"),
    Bug(_SHARDED, _ADD, _ADD_AT_THE_RATE_OF_THE_FIRST, "options[added_group]"),
]
