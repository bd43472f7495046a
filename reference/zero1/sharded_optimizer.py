"""ZeRO stage 1: each rank keeps the optimizer state of its own parameters only.

**Idea.** All ranks have the same gradients when they have averaged them. Every rank could compute the same update from
the same state, but then each rank stores the whole state; for AdamW that is twice the memory of the parameters. Here
each parameter has an owner, which is one of the ranks. Only the owner keeps the state of the parameter and computes its
update. Then the owner broadcasts the new value. With W ranks, a rank holds about 1/W of the state, and a step sends
each parameter once.

**Balance.** The largest parameter is assigned first. Each goes to the rank that owns the fewest bytes so far.

**One broadcast per owner.** The parameters of one owner lie side by side in memory (`flat_parameters`). So one
broadcast sends all of them, and nothing is copied before or after it. All broadcasts of a step are launched before the
first is waited for.

Read `ShardedOptimizer.__init__`, `step` and the methods below `step` first. What is beyond a first reading stands at
the end: new groups, saving and loading, copies.

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

from reference.partition import assign_to_least_loaded
from reference.zero1 import state_shares
from reference.zero1.flat_parameters import FlatParameters, memory_of, movable_parameters

ParamGroup = dict[str, Any]
StateDict = dict[str, Any]

PARAMETERS = ("params", "param_names")  # everything else in a group is an option


class ShardedOptimizer(Optimizer):
    """Any optimizer that updates each parameter by itself, with its state sharded over all ranks by whole parameters.

    It is used like the optimizer that it wraps. On every rank `param_groups` holds all parameters and options. A change
    of an option, by hand or by a learning-rate scheduler, takes effect at the next step. Groups may be added at any
    time. `state` holds this rank's share.

    The gradients must be averaged before `step`, for example by a data-parallel wrapper. All ranks must freeze and
    unfreeze the same parameters. The parameters stay the same `Parameter` objects, but they move in memory when the
    optimizer gets them. So code that keeps their addresses (CUDA graphs, NumPy views) must run afterwards.

    `state_dict()` returns this rank's share, which loads on the same rank of a world of the same size. After
    `consolidate_state_dict(to)`, it returns the whole state on rank `to`. The whole state loads under any world size,
    and into the unsharded optimizer.

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
        self._assign_owners(self._parameters())
        self._local = optimizer_cls([self._share(group) for group in self.param_groups], **options)
        self.defaults = self._local.defaults
        self.state = self._local.state
        _copy_options(self._local.param_groups, self.param_groups)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter, and return the closure's value. Call on every rank.

        Args:
            closure: computes the loss and the averaged gradients; called once, with gradients enabled.
        """
        with torch.enable_grad():
            loss = None if closure is None else closure()
        self._whole_state = None
        _copy_options(self.param_groups, self._local.param_groups)
        self._local.step()
        _copy_options(self._local.param_groups, self.param_groups)  # some optimizers keep counters there
        self._broadcast_updates()
        return loss

    def _broadcast_updates(self) -> None:
        """Send the new values from each owner to all other ranks; frozen parameters without gradients are not sent."""
        if self._memory != memory_of(self._owner):
            self._lay_out()  # for example after module.to(dtype)
        moved = [flat for flat in self._flats if any(p.requires_grad or p.grad is not None for p in flat.parameters)]
        for flat, work in [(flat, flat.launch_broadcast()) for flat in moved]:
            flat.finish_broadcast(work)

    def _assign_owners(self, parameters: list[Tensor]) -> None:
        """Balance bytes over the ranks. Frozen parameters have no state, and are balanced apart from the others."""
        self._frozen.update(p for p in parameters if not p.requires_grad)
        for frozen, loads in self._loads.items():
            kind = [p for p in parameters if (p in self._frozen) == frozen]
            self._owner.update(zip(kind, assign_to_least_loaded([p.nbytes for p in kind], loads), strict=True))
        self._lay_out()

    def _lay_out(self) -> None:
        """Put the parameters of one kind side by side. The kinds, and their order, are the same on every rank."""
        together: dict[tuple[Any, ...], list[Tensor]] = {}
        for p, owner in self._owner.items():
            if p.numel():
                together.setdefault((owner, p in self._frozen, p.dtype, p.device), []).append(p)
        movable = movable_parameters(self._owner, self._flats)
        self._flats = [FlatParameters(these, owner, movable) for (owner, *_), these in together.items()]
        self._memory = memory_of(self._owner)

    def _share(self, group: ParamGroup) -> ParamGroup:
        """The group with its options and the parameters that this rank owns, perhaps none.

        The largest is first: the memory that its update needs for a moment is enough for each update after it.
        """
        options = {name: value for name, value in group.items() if name not in PARAMETERS}
        mine = [p for p in group["params"] if self._owner[p] == dist.get_rank()]
        return {**options, "params": sorted(mine, key=lambda p: p.nbytes, reverse=True)}

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    # Beyond a first reading: new groups, saving and loading, copies.

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Optimize one more group of parameters; the state of the others is kept. Call on every rank."""
        super().add_param_group(param_group)
        if hasattr(self, "_local"):  # torch's constructor adds the first groups, before there is a local optimizer
            self._whole_state = None
            self._assign_owners(self.param_groups[-1]["params"])
            self._local.add_param_group(self._share(self.param_groups[-1]))
            _copy_options(self._local.param_groups[-1:], self.param_groups[-1:])  # other groups may have new options

    def state_dict(self) -> StateDict:
        """This rank's share, or the whole state if `consolidate_state_dict` has gathered it here since the last step.

        It does not communicate, so one rank may call it alone.

        Returns:
            `state` and `param_groups`, with the parameters numbered as the wrapped optimizer numbers them. A share
            has its rank and world size under `shard`, and holds the tensors in use. The tensors of the whole state are
            copies on the CPU.
        """
        packed = super().state_dict()
        if self._whole_state is None:
            return {**packed, "shard": state_shares.label()}
        return {**packed, "state": self._whole_state}

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Gather the whole state on rank `to`, where `state_dict` returns it until the next step.

        This is a collective: call it on every rank.
        """
        numbers: dict[Any, int] = {parameter: number for number, parameter in enumerate(self._parameters())}
        gathered = state_shares.gather({numbers.get(key, key): state for key, state in self.state.items()}, to)
        if gathered is not None:
            # State that an optimizer keeps under a name belongs to no parameter, and comes last.
            in_order = sorted(gathered, key=lambda key: key if isinstance(key, int) else len(numbers))
            self._whole_state = {key: gathered[key] for key in in_order}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load the whole state, saved under any world size, or this rank's own share. Call on every rank.

        Args:
            state_dict: the result of `state_dict`, here or on the unsharded optimizer; neither changed nor kept.

        Raises:
            ValueError: for a share of another rank or world size, and where torch's optimizers raise it.
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
        """The attributes of a copy. Its parameters are copies too; the copy lays them out at its first step."""
        kept = {name: vars(self)[name] for name in ("_owner", "_frozen", "_loads", "_local")}
        return {**super().__getstate__(), **kept, "_flats": [], "_memory": None, "_whole_state": None}


def _copy_options(source: list[ParamGroup], target: list[ParamGroup]) -> None:
    """Give each target group the options of its source group; the parameters stay."""
    for given, group in zip(source, target, strict=True):
        group.update({name: value for name, value in given.items() if name not in PARAMETERS})
