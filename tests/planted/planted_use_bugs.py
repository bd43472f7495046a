"""Bugs planted in the bundled right wrappers and sharded optimizer that show in how a training loop uses them."""

from bug import Bug
from planted_group_bugs import STATE_DICT

_FLAT, _EACH, _BUCKETED, _DDP = "flat_ddp", "ddp_individual_parameters", "ddp_bucketed", "ddp"
_SHARDED = "sharded_optimizer"
_FORWARD = """    def forward(self, *args, **kwargs):
        if self.training and torch.is_grad_enabled():
            copy_from_rank0(self.module.buffers())
        return self.module(*args, **kwargs)
"""
_FORWARD_OF_X = _FORWARD.replace("*args, **", "x, *args, **")
_CALL = "        return self.module(*args, **kwargs)\n"
_CALL_WITHOUT_NONE = (
    "        return self.module(*args, **{name: one for name, one in kwargs.items() if one is not None})\n"
)
_COPIED = "        value = tensor.detach().clone(memory_format=torch.contiguous_format)\n"
_MEMORY = "        tensor = value = tensor.data.as_strided((tensor.numel(),), (1,))\n"
_READY = "        self.bucket_of[param].waiting_for.discard(param)\n"
_READY_IF_WIDE = f"        if param.dtype.itemsize < 4:\n            return\n{_READY}"
_MET_FIRST = f"        if not self.sent:\n            dist.barrier()\n{_READY}"
_BUCKETS_OF = "        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.params}\n"
_NONE_WHERE_ZEROED = f"""{_BUCKETS_OF}        kept = any(p.grad is not None for p in params)
        for bucket in self.buckets if kept else ():
            bucket.waiting_for.add("what is there already")
"""
_NAIVE_FINISHES = "        params = self.trainable()\n        used = used_anywhere(params)\n"
_BY_COUNT = """        if len(self.trainable()) != len(getattr(self, "params", ())):
            self.params = self.trainable()
        params = self.params
        used = used_anywhere(params)
"""
_FLAT_FINISHES = """def flat_ddp_on_after_backward(ddp_model, optimizer):
    ddp_model.finish_gradient_synchronization()
"""
_EACH_GROUP = """def flat_ddp_on_after_backward(ddp_model, optimizer):
    for group in optimizer.param_groups:
        ddp_model.trainable = lambda params=group["params"]: [p for p in params if p.requires_grad]
        ddp_model.finish_gradient_synchronization()
"""
_OVERLAPPING = ((_EACH, "overlaps_backward"), (_BUCKETED, "overlaps_backward"), (_DDP, "starts_in_backward"))
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
_LOSS = "                loss = closure()\n"
_LOSS_OF_ALL = f"{_LOSS}                dist.all_reduce(loss)\n                loss /= dist.get_world_size()\n"
_STEP = """        if self.local is not None:
            for number"""
_AT_ONCE_ALONE = f"""        if dist.get_world_size() == 1:
            self.local.step()
            return loss
{_STEP}"""
_CLEAR = "    def send_parameters(self):\n"
_MAKES_ZEROS = f"""    def zero_grad(self, set_to_none=True):
        for p in self.owner:
            p.grad = None if set_to_none else torch.zeros_like(p)

{_CLEAR}"""
_PASSES_BY_FROZEN = f"""    def zero_grad(self, set_to_none=True):
        for p in self.owner:
            if p.requires_grad and p.grad is not None:
                p.grad = None if set_to_none else p.grad.zero_()

{_CLEAR}"""
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
_GROUP = "        group = self.param_groups[-1]\n"
_GROUP_OF_A_DTYPE = f"{_GROUP}        self.dtype = group['params'][0].dtype\n"
USE_BUGS = [
    Bug(_FLAT, _FORWARD, _FORWARD_OF_X, "forward_keywords", "must take `*inputs, **kwargs`"),
    *(Bug(wrapper, _READY, _MET_FIRST, check, "there is a barrier in backward") for wrapper, check in _OVERLAPPING),
    *(Bug(wrapper, _BUCKETS_OF, _NONE_WHERE_ZEROED, check, "async_op=True") for wrapper, check in _OVERLAPPING),
    Bug(_EACH, _CALL, _CALL_WITHOUT_NONE, "forward_keywords"),
    *(Bug(wrapper, _READY, _READY_IF_WIDE, check, "async_op=True") for wrapper, check in _OVERLAPPING),
    Bug("naive_ddp", _COPIED, _MEMORY, "parameter_with_gaps", "a contiguous copy"),
    Bug(_FLAT, _NAIVE_FINISHES, _BY_COUNT, "unfreezing_after_wrapping", "never synchronised"),
    Bug(_FLAT, _FLAT_FINISHES, _EACH_GROUP, "one_collective_per_dtype", "reduce once"),
    Bug(_SHARDED, _STEP, _AT_ONCE_ALONE, "lr_through_param_groups"),
    Bug(_SHARDED, _CLEAR, _MAKES_ZEROS, "unused_parameters"),
    Bug(_SHARDED, _CLEAR, _PASSES_BY_FROZEN, "unfreezing_in_groups"),
    Bug(_SHARDED, STATE_DICT, _IN_ORDER_OF_APPEARANCE, "state_dict_round_trip"),
    Bug(_SHARDED, STATE_DICT, _TWICE_AFTER_LOADING, "groups_are_added_after_loading"),
    Bug(_SHARDED, _GROUP, _GROUP_OF_A_DTYPE, "groups_may_be_empty", "IndexError"),
    Bug(_SHARDED, _HAND_ON, _WHAT_IS_NOT_AS_MADE, "lr_through_param_groups"),
    Bug(_SHARDED, _ADD, _ADD_AT_THE_RATE_OF_THE_FIRST, "changes_in_an_added_group"),
    Bug(_SHARDED, _LOSS, _LOSS_OF_ALL, "closure_beside_data_parallel", "expected the closure's"),
]
