"""What a library claims of its wrapper or optimizer: checks and scenarios of anything else are left out.

Nothing here imports torch.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar, get_args

from conformance.scenarios.drawn import Drawn
from conformance.scenarios.layers import Dtype
from conformance.scenarios.model_spec import Branch
from conformance.scenarios.scenario import Freeze, OptimizerKind, Scenario

Broadcasts: TypeAlias = Literal["at_wrap", "at_first_forward", "never"]
Unused: TypeAlias = Literal["on_any_rank", "on_all_ranks", "in_all_steps", "never"]
S = TypeVar("S", bound=Scenario)

_UNUSED: tuple[Unused, ...] = get_args(Unused)  # each allows what those after it allow
_OF_BRANCH: dict[Branch, Unused] = {
    "none": "never",
    "order_by_rank": "never",
    "unused": "in_all_steps",
    "used_in_even_steps": "on_all_ranks",
    "used_in_odd_steps": "on_all_ranks",
    "used_in_first_micro_batch": "on_all_ranks",
}  # others: on some ranks
_WHERE: dict[Unused, str] = {
    "on_any_rank": "on some ranks",
    "on_all_ranks": "in some steps",
    "in_all_steps": "in any step",
}
_STARTS = "initial_broadcast"
_BUFFERS = "trains[buffers]"
_OVERLAPS = "overlaps_backward"
_STATE = ("engine", "state_is_sharded")
_SAME_OPTIONS: dict[OptimizerKind, OptimizerKind] = {"AdamW": "Adam", "Adam": "AdamW"}


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What a library promises. A check of anything else is skipped, and the claim is the reason.

    Attributes:
        dtypes: of parameters and gradients. Without "float64", all checks that need not be in float64 use float32.
        optimizers: the classes that a sharded optimizer shards, by their names in `torch.optim`.
        lossy: how far communication may take a gradient, or a parameter that a sharded optimizer sends, relative to the
            tensor's largest element. Parameters must then be right for the gradients that rank 0 has.
        broadcasts: when all ranks get rank 0's parameters and buffers.
        unused: when a parameter that required a gradient at wrapping may get none, since the loss does not depend on
            it, or it was frozen later: on any rank; on all ranks alike; on all ranks, and alike in all steps; or never.
        overlaps: whether gradients are sent during backward.
        shards_state: whether the ranks together hold an engine's optimizer state once, and not each of them all of it.
    """

    dtypes: tuple[Dtype, ...] = get_args(Dtype)
    optimizers: tuple[OptimizerKind, ...] = get_args(OptimizerKind)
    lossy: float = 0.0
    broadcasts: Broadcasts = "at_wrap"
    unused: Unused = "on_any_rank"
    overlaps: bool = True
    shards_state: bool = True

    @property
    def mistake(self) -> str:
        """What is wrong with the claims; "" if nothing is."""
        known = (("dtypes", get_args(Dtype)), ("optimizers", get_args(OptimizerKind)))
        for name, allowed in known:
            given = getattr(self, name)
            if isinstance(given, str) or not given or set(given) - set(allowed):
                return f"Claims({name}={given!r}): give a tuple of some of {', '.join(allowed)}"
        for name, allowed in (("broadcasts", get_args(Broadcasts)), ("unused", _UNUSED)):
            if getattr(self, name) not in allowed:
                return f"Claims({name}={getattr(self, name)!r}): choose from {', '.join(allowed)}"
        return "" if 0 <= self.lossy < 1 else f"Claims(lossy={self.lossy!r}): give a share from 0 to 1, as 1e-2"

    def leaves_out(self, component: str, check: str) -> str:
        """Return the claim that leaves out a whole check; "" if none does."""
        sharded = component == "fsdp"  # it is asked for its parameters after steps alone, and gets equal buffers
        if check == _STARTS and (self.broadcasts == "never" or (self.broadcasts != "at_wrap" and not sharded)):
            return f"claimed is broadcasts={self.broadcasts!r}"
        if check == _BUFFERS and self.broadcasts != "at_wrap" and not sharded:
            return f"claimed is broadcasts={self.broadcasts!r}"
        if check.partition("[")[0] == _OVERLAPS and not self.overlaps:
            return "claimed is overlaps=False"
        if (component, check) == _STATE and not self.shards_state:
            return "claimed is shards_state=False"
        return ""

    def eased(self, drawn: Drawn, *, exact: bool, optimizer: bool) -> Drawn:
        """Return a scenario as the claims allow it, where little has to change.

        Args:
            drawn: the scenario; a case stays as it is.
            exact: whether it must stay in float64.
            optimizer: whether the library has the optimizer.
        """
        if not isinstance(drawn, Scenario):
            return drawn
        if "float64" not in self.dtypes and not exact:
            drawn = drawn.in_float32
        if optimizer:
            drawn = self._with_claimed_optimizer(drawn)
        start = drawn.equal_start or self.broadcasts == "never"
        return replace(drawn, equal_start=start, lossy=self.lossy)

    def _with_claimed_optimizer(self, drawn: S) -> S:
        """Return the scenario with Adam for AdamW, or the other way round, if only that one is claimed."""
        spec = drawn.optimizer
        other = _SAME_OPTIONS.get(spec.kind, spec.kind)
        if spec.kind in self.optimizers or other not in self.optimizers:
            return drawn
        return replace(drawn, optimizer=replace(spec, kind=other))

    def unclaimed(self, drawn: Drawn, *, optimizer: bool) -> str:
        """Return what a scenario has that is not claimed; "" if there is nothing. Arguments as those of `eased`."""
        if not isinstance(drawn, Scenario):
            return ""
        if lacking := _dtypes(drawn) - set(self.dtypes):
            return f"claimed are dtypes={self.dtypes!r}, without {' and '.join(sorted(lacking))}"
        if optimizer and drawn.optimizer.kind not in self.optimizers:
            return f"claimed are optimizers={self.optimizers!r}, without {drawn.optimizer.kind}"
        needed = _unused(drawn)
        if _UNUSED.index(needed) < _UNUSED.index(self.unused):
            return f"claimed is unused={self.unused!r}, and a parameter has no gradient {_WHERE[needed]}"
        return ""


def _unused(drawn: Scenario) -> Unused:
    """Return when a parameter that required a gradient at wrapping gets none."""
    needed = _OF_BRANCH.get(drawn.model.branch, "on_any_rank")
    freezes = any(isinstance(event, Freeze) for event in drawn.schedule)
    return "on_all_ranks" if freezes and needed != "on_any_rank" else needed


def _dtypes(drawn: Scenario) -> set[Dtype]:
    """Return the dtypes of a scenario's parameters, and what it computes in."""
    used: set[Dtype] = {drawn.model.dtype, *drawn.model.dtypes.values()}
    used |= {"float64"} if drawn.converted == "float64" else set()
    return used | ({"bfloat16"} if getattr(drawn, "half", False) else set())


EVERYTHING = Claims()
