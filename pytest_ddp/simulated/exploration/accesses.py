"""Which memory of operations in flight a rank reads and writes.

An operation is in flight on a rank from its launch until the rank has waited for it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from pytest_ddp.observed.recording.call import tensors_in
from pytest_ddp.simulated.operation import Launch, memory_range
from pytest_ddp.simulated.schedule import Range
from pytest_ddp.torch_internals import TorchDispatchMode

Touched = Callable[[Launch, str, bool], None]


class InFlight:
    """The operations in flight on one rank, and the memory of their inputs and outputs."""

    def __init__(self) -> None:
        self._launches: dict[Launch, tuple[list[Range], list[Range]]] = {}

    def __bool__(self) -> bool:
        return bool(self._launches)

    def add(self, launch: Launch) -> None:
        """The rank has launched it."""
        call = launch.call
        self._launches[launch] = [range_of(one) for one in call.inputs], [range_of(one) for one in call.outputs]

    def remove(self, launch: Launch) -> None:
        """The rank has waited for it."""
        self._launches.pop(launch, None)

    def touching(self, ranges: list[Range]) -> Iterator[tuple[Launch, str]]:
        """Yield each operation whose "in" or "out" overlaps with one of the ranges."""
        for launch, (inputs, outputs) in self._launches.items():
            for name, mine in (("in", inputs), ("out", outputs)):
                if any(first < end and start < last for first, last in mine for start, end in ranges):
                    yield launch, name


class AccessMode(TorchDispatchMode):
    """While it is active in the thread of a rank, reports which operations in flight its tensor functions touch.

    It sees what goes through torch's dispatcher, so also C++ code of torch; it does not see NumPy and raw pointers.

    Args:
        in_flight: the operations of this rank.
        touched: called with the launch, "in" or "out", and whether it is written.
    """

    def __init__(self, in_flight: InFlight, touched: Touched) -> None:
        super().__init__()
        self._in_flight, self._touched = in_flight, touched

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Report the arguments of a function, and call it."""
        kwargs = kwargs or {}
        if self._in_flight:
            self._report(func._schema.arguments, args, kwargs)  # noqa: SLF001  it has no other name
        return func(*args, **kwargs)

    def _report(self, parameters: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if any(each.alias_info is not None and not each.alias_info.is_write for each in parameters):
            return  # a view: it touches no element
        for place, parameter in enumerate(parameters):
            value = args[place] if place < len(args) else kwargs.get(parameter.name)
            tensors = tensors_in(value)
            for launch, name in self._in_flight.touching([range_of(one) for one in tensors]) if tensors else ():
                self._touched(launch, name, parameter.alias_info is not None)


def range_of(tensor: torch.Tensor) -> Range:
    """Return the memory of a tensor; nothing for one without strides or memory."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or not tensor.numel():
        return 0, 0
    return memory_range(tensor)
