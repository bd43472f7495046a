"""Bugs in an engine: in what it does with gradients, with parameters, with the model, and in what it keeps."""

from functools import partial

from bug import Bug

_bug = partial(Bug, "engine")
_MEAN = "grad.reshape(-1) / dist.get_world_size()"
_LOSS = "        loss.backward()\n"
_UNUSED = "            if not used:\n"
_FORWARD = "        return self.module(*args, **kwargs)\n"
_TWO_DTYPES = "torch.bfloat16 if len({q.dtype for q in self.params}) > 1 else grad.dtype"
_ONCE_USED = "            self.known = vars(self).get('known', set()) | ({p} if used else set())\n"
_KNOWN = '{"lr", "betas", "eps", "weight_decay", "momentum", "nesterov", "dampening"}'
_WEIGHTS_SAMPLES = """        self.samples = torch.tensor(float(len((*args, *kwargs.values())[0])))
        return self.module(*args, **kwargs)

    def backward(self, loss):
        every = self.samples.clone()
        dist.all_reduce(every)
        (loss * self.samples * dist.get_world_size() / every).backward()
"""
_COUNTS_FORWARDS = """        self.forwards = vars(self).get("forwards", 0) + torch.is_grad_enabled()
        return self.module(*args, **kwargs)

    def backward(self, loss):
        (loss / self.forwards).backward()
        self.forwards = 0
"""
_USE = f"{_FORWARD}\n    def backward(self, loss):\n{_LOSS}"
_LIST = "self.params = list(module.parameters())"
_EVERY_TIME = "[p for m in module.modules() for p in m.parameters(recurse=False)]"
_NO_NORMS = _EVERY_TIME[1:-1].replace("for p", "if 'Norm' not in type(m).__name__ for p")
_SENT = "            flat = p.detach().reshape(-1)\n"
_MINE = "if self.owner[p] == dist.get_rank()]"
BUGS = [
    _bug("self.optimizer.step()", "self.optimizer.step(None, 1)", "runs_to_the_end", "raised TypeError in `step`"),
    _bug(
        "dict(self.module.named_parameters())",
        "{name.removesuffix('weight'): p for name, p in self.module.named_parameters()}",
        "runs_to_the_end",
        "there is no parameter 'layers.0.weight'",
    ),
    _bug("dist.all_reduce(flat)", "dist.all_reduce(flat, async_op=True)", "results_are_waited_for", "waited"),
    _bug(
        "            tensor.detach().copy_(value)\n",
        "            value\n",
        "initial_broadcast",
        "Initial values are not broadcast: all parameters",
    ),
    _bug(_MEAN, _MEAN.replace("dist", "max(2, dist").replace("()", "())"), "trains[one_rank]", "is not what training"),
    _bug(_MEAN, "grad.reshape(-1).clone()", "training_equals_one_process", "summed, not averaged"),
    _bug(_MEAN, f"{_MEAN} / dist.get_world_size()", "training_equals_one_process", "divided twice"),
    _bug("            p.grad = flat.view(p.shape)\n", "", "training_equals_one_process", "never synchronised"),
    _bug("        self.send_parameters()\n", "", "training_equals_one_process", "moved on one rank"),
    _bug(
        "dist.broadcast(flat, src=self.owner[p])\n",
        "dist.broadcast(flat, src=self.owner[p])\n            flat *= 1 + 1e-13 * dist.get_rank()\n",
        "ranks_stay_identical",
        "differs from rank 0's",
    ),
    _bug(
        _MEAN,
        f"(grad.bfloat16() if grad.dtype == torch.float32 else grad).to(grad.dtype){_MEAN.removeprefix('grad')}",
        "trains[float32]",
        "is not what training in one process gives",
    ),
    _bug(
        "optimizer_cls(mine, **options)",
        f"optimizer_cls(mine, **{{key: options[key] for key in options if key in {_KNOWN}}})",
        "trains[any_torch_optimizer]",
    ),
    _bug(f"{_UNUSED}                continue\n", "", "trains[frozen_parameters]", "The frozen parameter"),
    _bug(_LIST, f"self.params = {_EVERY_TIME}", "trains[tied_parameters]"),
    _bug(
        _SENT,
        "            flat = p.detach().as_strided((p.numel(),), (1,)).clone()\n",
        "trains[transposed_parameter]",
    ),
    _bug(
        _SENT,
        "            flat = (p.detach().permute(0, 2, 3, 1) if p.dim() == 4 else p.detach()).reshape(-1)\n",
        "trains[convolution]",
    ),
    _bug(_LIST, f"self.params = list(dict.fromkeys({_NO_NORMS}))", "trains[other_layers]"),
    _bug(
        _FORWARD,
        "        output = self.module(*args, **kwargs)\n"
        "        return output if torch.is_grad_enabled() else output.float().to(output.dtype)\n",
        "trains[evaluation_between_steps]",
        "the output of a forward in evaluation mode",
    ),
    _bug(_USE, _WEIGHTS_SAMPLES, "trains[uneven_batches]"),
    _bug(_FORWARD, _FORWARD.replace(", **kwargs", ""), "trains[keyword_arguments]"),
    _bug(_LOSS, f"        self.module.zero_grad()\n{_LOSS}", "trains[accumulation]", "the last backward pass alone"),
    _bug(_UNUSED, "            if not used or p.dtype == torch.bfloat16:\n", "trains[bfloat16]", "never synchronised"),
    _bug(_MEAN, f"grad.float().to(grad.dtype){_MEAN.removeprefix('grad')}", "trains[float64]"),
    _bug(_MEAN, f"grad.to({_TWO_DTYPES}).to(grad.dtype){_MEAN.removeprefix('grad')}", "trains[mixed_dtypes]"),
    _bug(_UNUSED, "            if not used or not p.dim():\n", "trains[scalar_parameter]", "`scale`"),
    _bug(_SENT, f"{_SENT}            flat.abs().max()\n", "trains[parameters_of_any_shape]", "raised"),
    _bug("(*module.parameters(), *module.buffers())", "module.parameters()", "trains[buffers]"),
    _bug(
        _UNUSED,
        "            if not used and not p.requires_grad:\n",
        "trains[unused_parameters]",
        "A gradient of zeros would let weight decay move it",
    ),
    _bug(_UNUSED, f"{_ONCE_USED}            if p not in self.known:\n", "trains[used_in_some_steps]"),
    _bug(_USE, _COUNTS_FORWARDS, "trains[several_forwards]"),
    _bug(_FORWARD, _FORWARD.replace("**kwargs)", "**kwargs) * 1.0"), "trains[other_arguments]", "raised TypeError"),
    _bug(_LIST, _LIST.replace("self", "Engine"), "two_side_by_side"),
    _bug(f"[p for p in self.params {_MINE}", "self.params", "state_is_sharded", "Every rank keeps the state of all"),
    _bug(_LOSS, f"{_LOSS}        self.losses = [*vars(self).get('losses', []), loss]\n", "nothing_grows", "alive"),
    _bug(
        _MINE,
        'if self.owner[p] == int(__import__("os").environ["LOCAL_RANK"])]',
        "on_two_machines",
        "is a rank's place on its own",
    ),
]
