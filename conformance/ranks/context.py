"""What an exercise has at hand on its rank: the case, the numbers, and the submission's functions."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import ModuleType
from typing import Any, cast

import torch
import torch.distributed as dist

from conformance.protocol.messages import Answer, Task
from conformance.ranks.boundary import stage
from conformance.ranks.environment import seed_global_generators, states_of_global_generators
from conformance.scenarios.scenario import Scenario
from conformance.workload.numbers import RankInputs, Tensors


@dataclass
class Context:
    """One rank's work on a case.

    Attributes:
        task: what is asked.
        adapters: the submission's adapters.
        answer: what has been found so far, by name.
    """

    task: Task
    adapters: ModuleType
    answer: Tensors = field(default_factory=dict)

    @property
    def case(self) -> Any:
        """The case; of the type that the exercise is for."""
        return self.task.drawn

    @property
    def scenario(self) -> Scenario:
        """The scenario of training."""
        return cast("Scenario", self.task.drawn)

    @cached_property
    def inputs(self) -> RankInputs:
        """This rank's numbers for training."""
        return RankInputs.from_names(self.task.given)

    @property
    def given(self) -> Tensors:
        """This rank's numbers."""
        return self.task.given

    @property
    def world_size(self) -> int:
        """How many ranks work on the case at the same time."""
        return dist.get_world_size()

    def answered(self) -> Answer:
        """Return what has been found as an answer."""
        return Answer({name: tensor.detach().clone() for name, tensor in self.answer.items()})

    def call(self, name: str, *arguments: Any) -> Any:
        """Call an adapter function."""
        with stage(f"`{name}`"):
            return getattr(self.adapters, name)(*arguments)

    def function(self, name: str) -> Callable[..., Any]:
        """Return an adapter function that may be called later."""
        return partial(self.call, name)

    def keep(self, moment: str, tensors: Tensors) -> None:
        """Answer with these tensors under "MOMENT/NAME"."""
        self.answer |= {f"{moment}/{name}": value for name, value in tensors.items()}

    def number(self, name: str, found: Any) -> None:
        """Note one number, under a name, and whether it is one: NaN for what is none."""
        try:
            value, is_number = float(found), True
        except (TypeError, ValueError, RuntimeError):
            value, is_number = math.nan, False
        self.answer[name] = torch.tensor(value, dtype=torch.float64)
        self.answer[f"{name}_is_number"] = torch.tensor(is_number)

    @contextmanager
    def watching_global_generators(self, seed: int) -> Iterator[None]:
        """Seed torch's, Python's and NumPy's global generator, and note which of them the block moves."""
        seed_global_generators(seed)
        before = states_of_global_generators()
        yield
        for name, state in states_of_global_generators().items():
            self.answer[f"moved/{name}"] = torch.tensor(state != before[name])
