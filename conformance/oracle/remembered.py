"""Inputs and right results of scenarios, computed once for all components. Callers must not change them.

What is remembered is bounded by bytes. Results are kept packed for long, and as tensors for a short time: hundreds of
small tensors take twenty times as much memory as their numbers.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from conformance.oracle.training import Trajectory, train
from conformance.protocol.codec import pack, unpack
from conformance.scenarios.scenario import Scenario
from conformance.workload.numbers import RankInputs, Tensors, draw_inputs, under

T = TypeVar("T")
_TENSORS = ("starts", "gradients", "parameters")
_BYTES_OF_A_TENSOR = 1_000  # beside its numbers


@dataclass
class Remembered(Generic[T]):
    """Values by scenario and seed, of which the oldest go when all take more than `limit` bytes.

    Attributes:
        limit: in bytes.
        size: how many bytes a value takes.
    """

    limit: float
    size: Callable[[T], int]
    _values: dict[tuple[Scenario, int], T] = field(default_factory=dict)
    _taken: int = 0

    def get(self, scenario: Scenario, seed: int, make: Callable[[], T]) -> T:
        """Return the value, which `make` makes if it is not remembered."""
        key = (scenario, seed)
        if (value := self._values.pop(key, None)) is None:
            value = make()
            self._taken += self.size(value)
        self._values[key] = value
        while self._taken > self.limit and len(self._values) > 1:
            self._taken -= self.size(self._values.pop(next(iter(self._values))))
        return value


def inputs_of(scenario: Scenario, seed: int) -> list[RankInputs]:
    """Return every rank's inputs, as `draw_inputs` does."""
    plain = scenario.unbucketed
    return _INPUTS.get(plain, seed, lambda: draw_inputs(plain, seed))


def right_training(scenario: Scenario, seed: int) -> Trajectory:
    """Return the right training on these inputs, as `train` does without `follow`."""
    packed = packed_training(scenario, seed)
    return _RIGHT.get(scenario.unbucketed, seed, lambda: _unpack(packed))


def packed_training(scenario: Scenario, seed: int) -> bytes:
    """Return the right training for another process to remember."""
    plain = scenario.unbucketed
    return _PACKED.get(plain, seed, lambda: _pack(train(plain, inputs_of(plain, seed))))


def remember_training(scenario: Scenario, seed: int, packed: bytes) -> None:
    """Remember what `packed_training` returned in another process."""
    _PACKED.get(scenario.unbucketed, seed, lambda: packed)


def _pack(right: Trajectory) -> bytes:
    tensors: Tensors = {
        f"{kind}/{step}/{name}": value.clone()
        for kind in _TENSORS
        for step, values in enumerate(getattr(right, kind))
        for name, value in values.items()
    }
    facts = {name: value for name, value in vars(right).items() if name not in _TENSORS}
    return pack({**facts, "steps": len(right.parameters), "order": list(tensors)}, tensors)


def _unpack(packed: bytes) -> Trajectory:
    facts, tensors = unpack(packed)
    steps, ordered = range(facts.pop("steps")), {name: tensors[name] for name in facts.pop("order")}
    by_step: dict[str, Any] = {kind: [under(ordered, f"{kind}/{step}/") for step in steps] for kind in _TENSORS}
    return Trajectory(**facts, **by_step)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.nbytes + _BYTES_OF_A_TENSOR for tensor in tensors)


def _of_inputs(inputs: list[RankInputs]) -> int:
    return sum(_bytes(own.by_name().values()) for own in inputs)


def _of_right(right: Trajectory) -> int:
    return sum(_bytes(values.values()) for kind in _TENSORS for values in getattr(right, kind))


_INPUTS: Remembered[list[RankInputs]] = Remembered(2**24, _of_inputs)
_RIGHT: Remembered[Trajectory] = Remembered(2**24, _of_right)
_PACKED: Remembered[bytes] = Remembered(2**24, len)


@contextmanager
def remembering(share: float) -> Iterator[None]:
    """Remember this share of the usual bytes meanwhile: the rest is computed again."""
    caches: tuple[Remembered[Any], ...] = (_INPUTS, _RIGHT, _PACKED)
    usual = [cache.limit for cache in caches]
    for cache in caches:
        cache.limit *= share
    try:
        yield
    finally:
        for cache, limit in zip(caches, usual, strict=True):
            cache.limit = limit
