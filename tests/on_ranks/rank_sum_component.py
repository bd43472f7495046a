"""A small component as CONTRIBUTING shows it, `rank_sum`: what ranks do, and what they are asked."""

from dataclasses import dataclass

import torch.distributed as dist

from conformance.ranks.context import Desk
from conformance.scenarios.drawn import Case


@dataclass(frozen=True, repr=False)
class RankSumCase(Case):
    """One number on each rank."""


def add_up(desk: Desk) -> None:
    """Note the sum that the submission returns, and which rank this is."""
    desk.number("sum", desk.call("rank_sum", float(desk.given["value"])))
    desk.number("rank", dist.get_rank())
