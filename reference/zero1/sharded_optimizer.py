"""ZeRO stage 1: every parameter's optimizer state lives on one rank only.

With averaged gradients every rank would compute the same update from the same state: W copies of, for AdamW, twice the
parameters' memory. Here each parameter has an owner. The owner alone keeps the state and computes the update, then
broadcasts the new value. The traffic per step is one copy of the parameters, the state per rank about 1/W.

The parameters of one owner travel together, up to 25 MB in a broadcast, all broadcasts at once; lying side by side in
memory, they need not be copied for that (`flat_parameters`).

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020), section
5.1 (P_os); `torch.distributed.optim.ZeroRedundancyOptimizer`.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from reference.partition import assign_to_least_loaded, fill_buckets
from reference.zero1 import state_shares
from reference.zero1.flat_parameters import FlatParameters, memory_of, movable_parameters

ParamGroup = dict[str, Any]
StateDict = dict[str, Any]

PARAMETERS = ("params", "param_names")  # what of a group is no option
MOST_BYTES = 25 * 1024 * 1024  # of one broadcast, unless a single parameter has more


class ShardedOptimizer(Optimizer):
    """Any element-wise or parameter-wise optimizer, its state sharded over all ranks by whole parameters.

    It is used like the optimizer it wraps: `param_groups` hold all parameters and all options on every rank, edits of
    them (by hand or by a learning-rate scheduler) take effect at the next step, and groups may be added at any time.
    `state` holds this rank's share. Gradients have to be averaged already: combine it with any data-parallel wrapper.
    All ranks freeze and unfreeze the same parameters. Parameters move in memory when they are given to it: whatever
    keeps raw addresses of them (CUDA graphs, `numpy` views) has to be made later.

    Saving: `state_dict()` is this rank's share, and loads on the same rank of as many. After
    `consolidate_state_dict(to)`, it is on rank `to` the whole, as the wrapped optimizer would give it; that loads under
    any world size, and into an unsharded optimizer.

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
        self._frozen: set[Tensor] = set()
        self._loads = {frozen: [0] * dist.get_world_size() for frozen in (False, True)}
        self._flats: list[FlatParameters] = []
        self._whole_state: dict[Any, Any] | None = None
        super().__init__(params, {})
        self._take_in(self._parameters())
        self._local = optimizer_cls([self._share(group) for group in self.param_groups], **options)
        self.defaults = self._local.defaults
        self.state = self._local.state
        _copy_options(self._local.param_groups, self.param_groups)

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Optimize one more group of parameters; the state of the others is kept. Call on every rank."""
        super().add_param_group(param_group)
        if hasattr(self, "_local"):  # not yet while torch's constructor adds the first groups
            self._whole_state = None
            self._take_in(self.param_groups[-1]["params"])
            self._local.add_param_group(self._share(self.param_groups[-1]))
            _copy_options(self._local.param_groups[-1:], self.param_groups[-1:])  # others may just have been edited

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter, and return the closure's value. Call on every rank.

        Args:
            closure: computes the loss and the synchronized gradients; called once, with gradients enabled.
        """
        with torch.enable_grad():
            loss = None if closure is None else closure()
        self._whole_state = None
        _copy_options(self.param_groups, self._local.param_groups)
        self._local.step()
        _copy_options(self._local.param_groups, self.param_groups)  # some optimizers keep counters there
        self._broadcast_updates()
        return loss

    def state_dict(self) -> StateDict:
        """This rank's share, or the whole where `consolidate_state_dict` has gathered it since the last step.

        No communication: it may be called on one rank alone.

        Returns:
            `state` and `param_groups` with the parameters numbered as by the wrapped optimizer. A share says whose it
            is under `shard`; its tensors are those in use. The tensors of the whole are copies on the CPU.
        """
        packed = super().state_dict()
        if self._whole_state is None:
            return {**packed, "shard": state_shares.label()}
        return {**packed, "state": self._whole_state}

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Gather the whole optimizer's state on rank `to`, where `state_dict` gives it until the next step.

        A collective: call on every rank.
        """
        numbers: dict[Any, int] = {parameter: number for number, parameter in enumerate(self._parameters())}
        gathered = state_shares.gather({numbers.get(key, key): state for key, state in self.state.items()}, to)
        if gathered is not None:
            # What an optimizer keeps under a name belongs to no parameter, and comes last.
            in_order = sorted(gathered, key=lambda key: key if isinstance(key, int) else len(numbers))
            self._whole_state = {key: gathered[key] for key in in_order}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over a whole optimizer's state, saved with any world size, or this rank's own share. Call on every rank.

        Args:
            state_dict: what `state_dict` returned here or on the unsharded optimizer; neither changed nor kept.

        Raises:
            ValueError: for a share of another rank or world size, and as torch's optimizers do.
        """
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        given = zip(saved, self._parameters(), strict=False)  # torch compares the lengths
        elsewhere = {number for number, parameter in given if self._owner[parameter] != dist.get_rank()}
        state_shares.refuse_misplaced(state_dict, elsewhere)
        share = {number: deepcopy(state) for number, state in state_dict["state"].items() if number not in elsewhere}
        super().load_state_dict({**state_dict, "state": share})
        self._whole_state = None
        _copy_options(self.param_groups, self._local.param_groups)
        self._local.__setstate__({"state": self.state, "param_groups": self._local.param_groups})
        _copy_options(self._local.param_groups, self.param_groups)
        self.state = self._local.state

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of; its parameters are copies too, which it lays out at its first step."""
        kept = {name: vars(self)[name] for name in ("_owner", "_frozen", "_loads", "_local")}
        return {**super().__getstate__(), **kept, "_flats": [], "_memory": None, "_whole_state": None}

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _take_in(self, parameters: list[Tensor]) -> None:
        """Balance bytes over ranks; frozen parameters, which have no state, are balanced apart from the others."""
        self._frozen.update(p for p in parameters if not p.requires_grad)
        for frozen, loads in self._loads.items():
            kind = [p for p in parameters if (p in self._frozen) == frozen]
            self._owner.update(zip(kind, assign_to_least_loaded([p.nbytes for p in kind], loads), strict=True))
        self._lay_out()

    def _lay_out(self) -> None:
        """Decide what travels together; by owners and sizes alone, so that every rank decides alike."""
        parameters = [p for p in self._owner if p.numel()]
        kinds = [(self._owner[p], p in self._frozen, p.dtype, p.device) for p in parameters]
        movable = movable_parameters(parameters, self._flats)
        self._flats = [
            FlatParameters([parameters[i] for i in bucket], self._owner[parameters[bucket[0]]], movable)
            for bucket in fill_buckets([p.nbytes for p in parameters], kinds, MOST_BYTES)
        ]
        self._memory = memory_of(self._owner)

    def _broadcast_updates(self) -> None:
        """Send what may have moved: where nothing is trained, nothing has."""
        if self._memory != memory_of(self._owner):
            self._lay_out()  # after module.to(dtype), say
        moved = [flat for flat in self._flats if any(p.requires_grad or p.grad is not None for p in flat.parameters)]
        for flat, work in [(flat, flat.launch_broadcast()) for flat in moved]:
            flat.finish_broadcast(work)

    def _share(self, group: ParamGroup) -> ParamGroup:
        """The group with its options and the parameters that this rank owns, perhaps none."""
        rank = dist.get_rank()
        options = {name: value for name, value in group.items() if name not in PARAMETERS}
        return {**options, "params": [p for p in group["params"] if self._owner[p] == rank]}


def _copy_options(source: list[ParamGroup], target: list[ParamGroup]) -> None:
    """Give each target group the options of its source group; the parameters stay."""
    for given, group in zip(source, target, strict=True):
        group.update({name: value for name, value in given.items() if name not in PARAMETERS})
