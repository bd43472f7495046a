"""A small component as CONTRIBUTING shows it, `rank_sum`: what ranks do, and what they are asked."""

from dataclasses import dataclass

import torch.distributed as dist

from conformance.ranks.context import Context
from conformance.scenarios.drawn import Case


@dataclass(frozen=True, repr=False)
class RankSumCase(Case):
    """One number on each rank."""


def add_up(context: Context) -> None:
    """Note the sum that the submission returns, and which rank this is."""
    context.number("sum", context.call("rank_sum", float(context.given["value"])))
    context.number("rank", dist.get_rank())
