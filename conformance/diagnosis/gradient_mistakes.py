"""What known mistakes would make of one rank's gradient, right after synchronisation."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from conformance.oracle.tolerance import difference, is_rounded, scale_of

_ROUNDINGS = 8


@dataclass(frozen=True)
class Shards:
    """One parameter at one step: what a rank reported, each rank's own gradient, and the average of the step before.

    `last` holds each rank's own gradient of the last backward pass alone, in a step of several. All but `seen` are in
    float64.
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
        """The largest element of the average of magnitudes: what rounding is relative to, even where shards cancel."""
        return scale_of([torch.stack(self.own).abs().mean(0)])


_MEMORY_ORDERS = {2: (1, 0), 4: (0, 2, 3, 1)}  # of a transposed matrix, of a kernel stored channels last


@dataclass(frozen=True)
class GradientMistake:
    """A way to get a gradient wrong: what would be seen, in words, what to look for, and the value (None: not apt)."""

    name: str
    seen: str
    advice: str
    value: Callable[[Shards], torch.Tensor | None]


def _half(shards: Shards) -> torch.Tensor | None:
    return None if len(shards.own) == 2 else torch.stack(shards.own).sum(0) / 2  # noqa: PLR2004  the literal of the bug


def _double(shards: Shards) -> torch.Tensor | None:
    return None if len(shards.own) == 2 else 2 * shards.mean  # noqa: PLR2004  of two ranks, it is the sum


def _memory_order(shards: Shards) -> torch.Tensor | None:
    """The mean, its elements read in memory order and written in logical order, or the reverse: whichever is nearer."""
    mean, order = shards.mean, _MEMORY_ORDERS.get(shards.mean.dim())
    if order is None:
        return None
    read = mean.permute(order).reshape(mean.shape)
    stored = [mean.shape[dimension] for dimension in order]
    written = mean.reshape(stored).permute([order.index(dimension) for dimension in range(mean.dim())])
    return min((read, written), key=lambda value: difference(shards.seen, value).absolute)


def _rounded(dtype: torch.dtype) -> Callable[[Shards], torch.Tensor | None]:
    """Recognise a value that went through `dtype`: near the mean, and representable in it before or after division."""

    def value(shards: Shards) -> torch.Tensor | None:
        if torch.finfo(dtype).eps <= torch.finfo(shards.seen.dtype).eps:
            return None
        near = difference(shards.seen, shards.mean).absolute < _ROUNDINGS * torch.finfo(dtype).eps * shards.magnitude
        return shards.seen if near and is_rounded(shards.seen, dtype, len(shards.own)) else None

    return value


GRADIENT_MISTAKES = (
    GradientMistake(
        "never synchronised",
        "the rank's own gradient, as if nothing had been communicated",
        "Check that the collective is really launched (does its hook fire after the gradient is stored in `.grad`?), "
        "that it is waited for, and that its result is written back to `.grad`.",
        lambda s: s.own[s.rank],
    ),
    GradientMistake(
        "summed, not averaged",
        "the sum over the ranks, not the average",
        "`all_reduce` adds up: divide by `dist.get_world_size()` once.",
        lambda s: torch.stack(s.own).sum(0),
    ),
    GradientMistake(
        "divided twice",
        "the average divided by the number of ranks once more",
        "The division by the world size happens in two places (in the hook and after waiting?), or both on the way in "
        "and on the way out.",
        lambda s: s.mean / len(s.own),
    ),
    GradientMistake(
        "divided by a fixed 2",
        "the sum over the ranks divided by 2, whatever the number of ranks",
        "Divide by `dist.get_world_size()` in place of a literal.",
        _half,
    ),
    GradientMistake(
        "counted twice",
        "twice the average, whatever the number of ranks",
        "Backward adds the gradient to what `.grad` holds by then: what a tensor's hook, which comes before, has put "
        "there counts as well. Work in `register_post_accumulate_grad_hook`, or hand over by returning.",
        _double,
    ),
    GradientMistake(
        "rank 0's gradient everywhere",
        "rank 0's own gradient",
        "A broadcast of gradients stands where an all-reduce is needed.",
        lambda s: s.own[0],
    ),
    GradientMistake(
        "zero",
        "zero",
        "The gradient was cleared, or its communication buffer was copied back before it held anything.",
        lambda s: torch.zeros_like(s.mean),
    ),
    GradientMistake(
        "added to the step before",
        "this step's average plus the gradient of the step before",
        "The gradient of the step before was not cleared, or a buffer was added to in place of overwritten. "
        "With `zero_grad(set_to_none=False)` a gradient that is a view must be zeroed too.",
        lambda s: None if s.previous is None else s.mean + s.previous,
    ),
    GradientMistake(
        "one step late",
        "the average of the step before",
        "The result of this step's collective is used one step later: wait before the optimizer's step, and write back "
        "after waiting.",
        lambda s: s.previous,
    ),
    GradientMistake(
        "the last backward pass alone",
        "the average of what the step's last backward pass gave, without the passes before it",
        "Gradients of the passes of one step add up in `.grad`: clear it between steps only, and overwrite it with "
        "nothing but the average of all that it held.",
        lambda s: torch.stack(s.last).mean(0) if s.last else None,
    ),
    GradientMistake(
        "the last backward pass never synchronised",
        "the average of the earlier backward passes plus the rank's own gradient of the last",
        "What is done once per step (`on_train_batch_start`, a flag, a list of handles) must be done for each backward "
        "pass that synchronises.",
        lambda s: s.mean - torch.stack(s.last).mean(0) + s.last[s.rank] if s.last else None,
    ),
    GradientMistake(
        "real part alone",
        "the real part of the average",
        "Complex gradients have an imaginary part, which a cast to a real dtype drops.",
        lambda s: torch.complex(s.mean.real, torch.zeros_like(s.mean.real)) if s.mean.is_complex() else None,
    ),
    GradientMistake(
        "divided, never added up",
        "the rank's own gradient divided by the number of ranks",
        "The division takes place, but the sum does not reach `.grad`: it stays in a copy (`.contiguous()`, "
        "`.float()`, `torch.cat` make one), or goes to one rank only (`reduce` in place of `all_reduce`).",
        lambda s: s.own[s.rank] / len(s.own),
    ),
    *(
        GradientMistake(
            f"rounded to {str(dtype).removeprefix('torch.')}",
            f"the average, rounded to {str(dtype).removeprefix('torch.')} on its way",
            "A buffer for communication has a dtype of its own: allocate it with the gradient's.",
            _rounded(dtype),
        )
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
    ),
    GradientMistake(
        "in memory order",
        "the average with its elements in another order: a tensor that is not contiguous was read in memory order and "
        "written in logical order",
        "Flatten with `.reshape(-1)` (or `.contiguous()`), and copy back through a view of the same kind.",
        _memory_order,
    ),
)
BY_NAME = {mistake.name: mistake for mistake in GRADIENT_MISTAKES}
