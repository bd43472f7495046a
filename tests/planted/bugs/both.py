"""Bugs that show where a wrapper and a sharded optimizer of one submission train together."""

from functools import partial

from bug import Bug

_bug = partial(Bug, "both")
_STEP = "    def step(self, closure=None):\n        loss = None\n"
_KEEPS_GRADIENTS_OF_BACKWARD = """    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none)
        for param in {*self.owner} - vars(self).setdefault("hooked", set()):
            self.hooked.add(param)
            param.register_post_accumulate_grad_hook(lambda p: setattr(p, "kept", p.grad.clone()))

    def step(self, closure=None):
        loss = None
        for param in self.owner:
            param.grad = getattr(param, "kept", param.grad)
"""
_FILLED = "        self.buckets, self.sent = self.make_buckets(reversed(params), self.max_bytes), 0\n"
_CALLED = "                loss = closure()\n"
BUGS = [
    _bug(_STEP, _KEEPS_GRADIENTS_OF_BACKWARD, "training_equals_one_process", "is not what training in one process"),
    _bug(
        "grad.detach().reshape(-1)",
        "grad.detach().as_strided((grad.numel(),), (1,))",
        "trains[transposed_parameter]",
        "how each parameter lay in memory",
    ),
    _bug("self.param_groups[number]", "self.param_groups[0]", "groups[own_options]", "first group's options"),
    _bug(_FILLED, f"        self.module.zero_grad()\n{_FILLED}", "trains[accumulation]", "is not the average"),
    _bug(_CALLED, _CALLED * 2, "closure", "Call the closure once"),
]
