"""Bugs in `step(closure)` and `zero_grad`."""

from functools import partial

from bug import Bug

_bug = partial(Bug, "sharded_optimizer")
_SHARDED = "sharded_optimizer"
_CLOSURE = """            with torch.enable_grad():
                loss = closure()
"""
_CLOSURE_ON_OWN = """                whole = [group["params"] for group in self.param_groups]
                for group in self.param_groups:
                    group["params"] = [p for p in group["params"] if self.owner[p] == dist.get_rank()]
                loss = closure()
                for group, params in zip(self.param_groups, whole, strict=True):
                    group["params"] = params
"""
_LOSS = "                loss = closure()\n"
_LOSS_OF_ALL = f"{_LOSS}                dist.all_reduce(loss)\n                loss /= dist.get_world_size()\n"
BUGS = [
    _bug(_CLOSURE, "            pass\n", "closure", "Call the closure once"),
    _bug("with torch.enable_grad():", "with torch.no_grad():", "closure", "`torch.enable_grad()`"),
    _bug(_CLOSURE, f"{_CLOSURE}                closure()\n", "closure", "Call the closure once"),
    _bug("        return loss\n", "        return None\n", "closure", "Call the closure once"),
    _bug(
        "        return loss\n",
        "        return None if loss is None else torch.stack([loss] * 2)\n",
        "closure",
        "nothing that is one number",
    ),
    _bug(
        "    def send_parameters",
        "    def zero_grad(self, set_to_none=True):\n"
        "        if self.local is not None:\n"
        "            self.local.zero_grad(set_to_none)\n\n"
        "    def send_parameters",
        "zero_grad",
        "Clear the parameters of the outer",
    ),
    _bug(
        "    def send_parameters",
        "    def zero_grad(self, set_to_none=True):\n        super().zero_grad()\n\n    def send_parameters",
        "zero_grad[keeps_tensors]",
        "Pass `set_to_none` on",
    ),
    _bug(
        "    def send_parameters",
        "    def zero_grad(self, set_to_none=True):\n"
        "        for p in self.param_groups[0]['params']:\n"
        "            p.grad = None\n\n"
        "    def send_parameters",
        "zero_grad[added_groups]",
        "Clear the parameters of the outer",
    ),
    _bug(
        _CLOSURE,
        "            loss = None if self.local is None else closure()\n",
        "closure[ranks_without_parameters]",
        "Call the closure once",
    ),
    _bug(
        "                loss = closure()\n",
        _CLOSURE_ON_OWN,
        "closure[beside_data_parallel]",
        "keep `param_groups` whole",
    ),
    Bug(_SHARDED, _LOSS, _LOSS_OF_ALL, "closure[beside_data_parallel]", "expected the closure's"),
]
