"""What a check holds: a scenario or a case, and what the ranks that ran it reported."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from conformance.oracle.remembered import inputs_of, right_training
from conformance.oracle.training import Trajectory, train
from conformance.protocol.messages import Answer, Observation
from conformance.scenarios.scenario import Scenario
from conformance.workload.numbers import RankInputs, Tensors, under


@dataclass(frozen=True)
class Trial:
    """A scenario, what the numbers that were fed to the ranks are drawn from, and what they saw."""

    scenario: Scenario
    seed: int
    observations: tuple[Observation, ...]

    @property
    def inputs(self) -> list[RankInputs]:
        """What was fed to each rank."""
        return inputs_of(self.scenario, self.seed)

    @cached_property
    def expected(self) -> Trajectory:
        """What one process on the batches of all ranks gives."""
        return self.under(self.scenario) if self.scenario.followed else right_training(self.scenario, self.seed)

    def under(self, scenario: Scenario) -> Trajectory:
        """Return what one process gives under another schedule, its rounding as on rank 0."""
        seen, steps = self.observations[0], range(self.scenario.steps)
        taken = Trajectory(
            gradients=[seen.gradients(step) for step in steps], parameters=[seen.parameters(step) for step in steps]
        )
        return train(scenario, self.inputs, follow=taken)


@dataclass(frozen=True)
class CaseTrial:
    """A case, and what each rank of each of its worlds was given and answered.

    Attributes:
        case: the case; of the type that the check is for.
        phases_given, phases: by world, then by rank.
    """

    case: Any
    phases_given: list[list[Tensors]]
    phases: list[list[Answer]]

    def unawaited(self, rank: int) -> list[str]:
        """Return the operations that nobody has waited for on a rank of the last world, with their lines."""
        return self.phases[-1][rank].unawaited

    @property
    def given(self) -> list[Tensors]:
        """What the ranks of the last world were given."""
        return self.phases_given[-1]

    @property
    def answers(self) -> list[Tensors]:
        """What the ranks of the last world answered."""
        return [answer.tensors for answer in self.phases[-1]]

    def under(self, prefix: str, world: int = -1) -> list[Tensors]:
        """Return what each rank of a world answered under names with this prefix, by names without it."""
        return [under(answer.tensors, prefix) for answer in self.phases[world]]

    def ranks_where(self, fact: str, *, holds: bool, world: int = -1) -> Iterator[int]:
        """Yield the ranks of a world that answered that a fact holds, or that it does not."""
        yield from (rank for rank, one in enumerate(self.phases[world]) if bool(one.tensors[fact]) is holds)
