"""A component as the executor sees it: what ranks carry out, and what they are given for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conformance.protocol.messages import Answer
from conformance.scenarios.drawn import Drawn
from conformance.submissions.contract import Contract
from conformance.workload.numbers import Tensors


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How ranks are asked for a component."""

    contract: Contract  # its adapter functions
    exercise: str  # the function, as "module:function", that uses them on a rank
    numbers: Callable[[Any, int], list[list[Tensors]]]  # of each rank of each world, by scenario or case and integer
    simplest: Drawn  # what shows whether the component is implemented at all; also of several ranks
    answer: type[Answer] = Answer  # what a rank answers
    shares_files: bool = False  # whether the ranks of all its worlds have a folder in common

    @property
    def name(self) -> str:
        """The component's name."""
        return self.contract.name


def for_each_rank(draw: Callable[[Any, int, int], Tensors]) -> Callable[[Any, int], list[list[Tensors]]]:
    """Return the numbers of all ranks of all worlds, where `draw(case, seed, rank)` gives those of one rank."""
    return lambda case, seed: [[draw(case, seed, rank) for rank in range(world)] for world in case.worlds]
