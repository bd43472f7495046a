"""The gradient that each known mistake would give on a rank, right after synchronisation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from conformance.oracle.tolerance import difference, is_rounded, scale_of

_ROUNDINGS = 8


@dataclass(frozen=True)
class Shards:
    """Gradients of one parameter at one step, all of its shape; all but `seen` are in float64.

    Attributes:
        seen: what a rank reported.
        own: by rank, the gradient of the rank's own batch.
        rank: the rank that reported.
        previous: the average of the step before, if there is one.
        last: by rank, the gradient of the last backward pass alone; empty if the step has only one.
    """

    seen: torch.Tensor
    own: tuple[torch.Tensor, ...]
    rank: int
    previous: torch.Tensor | None
    last: tuple[torch.Tensor, ...] = ()

    @property
    def mean(self) -> torch.Tensor:
        """The right answer."""
        return torch.stack(self.own).mean(0)

    @property
    def magnitude(self) -> float:
        """The largest element of the mean of absolute values: rounding is relative to it, even if shards cancel."""
        return scale_of([torch.stack(self.own).abs().mean(0)])


_MEMORY_ORDERS = {2: (1, 0), 4: (0, 2, 3, 1)}  # of a transposed matrix, of a kernel stored channels last


class GradientMistake(NamedTuple):
    """A way to get a gradient wrong.

    Attributes:
        name: what a report calls it.
        seen: which gradient is there instead of the average.
        advice: what to look for.
        value: returns that gradient, or None if the mistake cannot happen or looks like another one here.
    """

    name: str
    seen: str
    advice: str
    value: Callable[[Shards], torch.Tensor | None]


def _memory_order(shards: Shards) -> torch.Tensor | None:
    """Read the mean in memory order and write it in logical order, or the reverse, whichever is nearer."""
    mean, order = shards.mean, _MEMORY_ORDERS.get(shards.mean.dim())
    if order is None:
        return None
    read = mean.permute(order).reshape(mean.shape)
    stored = [mean.shape[dimension] for dimension in order]
    written = mean.reshape(stored).permute([order.index(dimension) for dimension in range(mean.dim())])
    return min((read, written), key=lambda value: difference(shards.seen, value))


def _real_part(shards: Shards) -> torch.Tensor | None:
    """Return the mean with an imaginary part of zero, or with the rank's own, whichever is nearer."""
    if not shards.mean.is_complex():
        return None
    parts = (torch.zeros_like(shards.mean.imag), shards.own[shards.rank].imag)
    values = (torch.complex(shards.mean.real, part) for part in parts)
    return min(values, key=lambda value: difference(shards.seen, value))


def _rounded(dtype: torch.dtype) -> Callable[[Shards], torch.Tensor | None]:
    """Accept a value that is near the mean, and that `dtype` can represent before or after the division."""

    def value(shards: Shards) -> torch.Tensor | None:
        if torch.finfo(dtype).eps <= torch.finfo(shards.seen.dtype).eps:
            return None
        near = difference(shards.seen, shards.mean) < _ROUNDINGS * torch.finfo(dtype).eps * shards.magnitude
        return shards.seen if near and is_rounded(shards.seen, dtype, len(shards.own)) else None

    return value


# fmt: off
_ALL = (
    GradientMistake("never synchronised",
        "the rank's own gradient, as if nothing had been communicated",
        "Check that a collective is launched (does the hook run after the gradient is stored in `.grad`?), that a wait "
        "follows, and that the result is written back to `.grad`.",
        lambda s: s.own[s.rank]),
    GradientMistake("summed, not averaged",
        "the sum over the ranks, not the average",
        "`all_reduce` returns the sum: divide it by `dist.get_world_size()` once.",
        lambda s: torch.stack(s.own).sum(0)),
    GradientMistake("divided twice",
        "the average divided by the number of ranks once more",
        "The code divides by the world size in two places: in the hook and after the wait, or before and after the "
        "all-reduce.",
        lambda s: s.mean / len(s.own)),
    GradientMistake("divided by a fixed 2",
        "the sum over the ranks divided by 2, whatever the number of ranks",
        "Divide by `dist.get_world_size()` instead of a literal.",
        lambda s: None if len(s.own) == 2 else torch.stack(s.own).sum(0) / 2),  # noqa: PLR2004  the literal of the bug
    GradientMistake("counted twice",
        "twice the average, whatever the number of ranks",
        "A tensor's hook runs before backward adds the gradient to `.grad`, so a gradient that the hook stores there "
        "counts twice. Use `register_post_accumulate_grad_hook`, or let the hook return the gradient.",
        lambda s: None if len(s.own) == 2 else 2 * s.mean),  # noqa: PLR2004  with two ranks it is the sum
    GradientMistake("rank 0's gradient everywhere",
        "rank 0's own gradient",
        "The code broadcasts gradients; an all-reduce is needed.",
        lambda s: s.own[0]),
    GradientMistake("zero",
        "zero",
        "The gradient was cleared, or the communication buffer was copied back before the result was in it.",
        lambda s: torch.zeros_like(s.mean)),
    GradientMistake("added to the step before",
        "this step's average plus the gradient of the step before",
        "The gradient of the step before was not cleared, or the code adds to a buffer instead of overwriting it. "
        "With `zero_grad(set_to_none=False)` a gradient that is a view must be zeroed too.",
        lambda s: None if s.previous is None else s.mean + s.previous),
    GradientMistake("one step late",
        "the average of the step before",
        "The result of this step's collective is used one step later: wait before the optimizer's step, and write the "
        "result back after the wait.",
        lambda s: s.previous),
    GradientMistake("the last backward pass alone",
        "the average of the gradients of the step's last backward pass, without the passes before it",
        "The passes of one step add up their gradients in `.grad`: clear it between steps only, and overwrite it only "
        "with the average of the whole sum.",
        lambda s: torch.stack(s.last).mean(0) if s.last else None),
    GradientMistake("the last backward pass never synchronised",
        "the average of the earlier backward passes plus the rank's own gradient of the last",
        "Preparations made once per step (in `on_train_batch_start`, a flag, a list of handles) must be made for each "
        "backward pass that synchronises.",
        lambda s: s.mean - torch.stack(s.last).mean(0) + s.last[s.rank] if s.last else None),
    GradientMistake("real part alone",
        "the average in its real part alone",
        "A cast to a real dtype drops the imaginary part of a complex gradient, and `.real` is a view of the other "
        "part: send both, and write both back.",
        _real_part),
    GradientMistake("divided, never added up",
        "the rank's own gradient divided by the number of ranks",
        "The code divides, but the sum does not reach `.grad`: it stays in a copy (`.contiguous()`, `.float()` and "
        "`torch.cat` make one), or reaches one rank only (`reduce` instead of `all_reduce`).",
        lambda s: s.own[s.rank] / len(s.own)),
    *(
        GradientMistake(f"rounded to {str(dtype).removeprefix('torch.')}",
            f"the average, rounded to {str(dtype).removeprefix('torch.')} on its way",
            "The communication buffer has another dtype than the gradient: allocate it with the gradient's dtype.",
            _rounded(dtype))
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
    ),
    GradientMistake("in memory order",
        "the average with its elements in another order: a tensor that is not contiguous was read in memory order and "
        "written in logical order",
        "Flatten with `.reshape(-1)` (or `.contiguous()`), and copy back through a view with the same order.",
        _memory_order),
)
# fmt: on
GRADIENT_MISTAKES = {mistake.name: mistake for mistake in _ALL}
