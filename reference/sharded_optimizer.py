"""ZeRO stage 1: every parameter's optimizer state lives on one rank only.

With averaged gradients every rank would compute the same update from the same state: W copies of, for AdamW, twice the
parameters' memory. Here each parameter has an owner. The owner alone keeps the state and computes the update, then
broadcasts the new value. The traffic per step is one copy of the parameters, the state per rank about 1/W.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020), section
5.1 (P_os); `torch.distributed.optim.ZeroRedundancyOptimizer`.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from reference.partition import assign_to_least_loaded
from reference.synchronize import agree, broadcast

ParamGroup = dict[str, Any]


class ShardedOptimizer(Optimizer):
    """Any element-wise or parameter-wise optimizer, its state sharded over all ranks by whole parameters.

    It is used like the optimizer it wraps: `param_groups` hold all parameters and all options on every rank, edits of
    them (by hand or by a learning-rate scheduler) take effect at the next step, and groups may be added at any time.
    `state` holds this rank's share. Gradients have to be averaged already: combine it with any data-parallel wrapper.

    Args:
        params: parameters, named parameters or param groups, in the same order on every rank.
        optimizer_cls: the optimizer class to wrap.
        **options: its keyword arguments, the defaults of every group.

    Raises:
        TypeError: for `LBFGS`, whose update of one parameter depends on all others.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[ParamGroup] | Iterable[tuple[str, Tensor]],
        optimizer_cls: type[Optimizer],
        **options: Any,
    ) -> None:
        if issubclass(optimizer_cls, LBFGS):
            raise TypeError(
                f"{optimizer_cls.__name__} cannot be sharded: its update of one parameter depends on all others. "
                "Use it unsharded, or choose an optimizer that updates each parameter by itself."
            )
        self._owner: dict[Tensor, int] = {}
        self._loads = {frozen: [0] * dist.get_world_size() for frozen in (False, True)}
        super().__init__(params, {})
        local_groups = [self._local_share(group) for group in self.param_groups]
        self._local = optimizer_cls(local_groups, **options)
        self.defaults = self._local.defaults
        self.state = self._local.state
        _copy_options(self._local.param_groups, self.param_groups)

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Optimize one more group of parameters; the state of the others is kept. Call on every rank."""
        super().add_param_group(param_group)
        self._assign_owners(self.param_groups[-1]["params"])
        if hasattr(self, "_local"):  # not yet while torch's constructor adds the first groups
            self._local.add_param_group(self._local_share(self.param_groups[-1]))
            _copy_options(self._local.param_groups, self.param_groups)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter, and return the closure's value. Call on every rank.

        Args:
            closure: computes the loss and the synchronized gradients; called once, with gradients enabled.
        """
        with torch.enable_grad():
            loss = None if closure is None else closure()
        _copy_options(self.param_groups, self._local.param_groups)
        self._local.step()
        _copy_options(self._local.param_groups, self.param_groups)  # some optimizers keep counters there
        self._broadcast_updates()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The whole optimizer's state, as the unsharded optimizer would give it, tensors on the CPU.

        A collective: call on every rank, then save on one.
        """
        packed = super().state_dict()
        mine = {index: {key: _to_cpu(value) for key, value in s.items()} for index, s in packed["state"].items()}
        shares: list[dict[int, Any]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(shares, mine)
        packed["state"] = dict(sorted(item for share in shares for item in share.items()))
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a whole optimizer's state, saved with any world size, and keep this rank's share of it.

        Args:
            state_dict: what `state_dict` returned here or on the unsharded optimizer; neither changed nor kept.
        """
        super().load_state_dict(copy.deepcopy(state_dict))
        rank = dist.get_rank()
        mine = {p: state for p, state in self.state.items() if self._owner[p] == rank}
        _copy_options(self.param_groups, self._local.param_groups)
        self._local.__setstate__({"state": defaultdict(dict, mine), "param_groups": self._local.param_groups})
        self.state = self._local.state

    def _assign_owners(self, parameters: list[Tensor]) -> None:
        """Balance bytes over ranks; frozen parameters, which have no state, are balanced apart from the others."""
        for frozen, loads in self._loads.items():
            kind = [p for p in parameters if p.requires_grad != frozen]
            sizes = [p.numel() * p.element_size() for p in kind]
            self._owner.update(zip(kind, assign_to_least_loaded(sizes, loads), strict=True))

    def _local_share(self, group: ParamGroup) -> ParamGroup:
        """The group with its options and the parameters that this rank owns, perhaps none."""
        rank = dist.get_rank()
        options = {name: value for name, value in group.items() if name not in ("params", "param_names")}
        return {**options, "params": [p for p in group["params"] if self._owner[p] == rank]}

    def _broadcast_updates(self) -> None:
        """Send what may have moved, all with a gradient somewhere: one broadcast per owner, dtype and device."""
        parameters = list(self._owner)
        flags = agree([p.grad is not None for p in parameters], parameters[0].device)
        moved = [p for p, flag in zip(parameters, flags, strict=True) if flag]
        for owner in range(dist.get_world_size()):
            broadcast([p for p in moved if self._owner[p] == owner], source=owner)


def _copy_options(source: list[ParamGroup], target: list[ParamGroup]) -> None:
    """Give each target group the options of its source group; the parameters stay."""
    for given, group in zip(source, target, strict=True):
        group.update({name: value for name, value in given.items() if name not in ("params", "param_names")})


def _to_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value
