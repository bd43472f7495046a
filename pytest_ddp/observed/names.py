"""What the record calls parameters."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch


@dataclass
class Names:
    """The names that the user gave; holds on to no parameter, because that would keep a model's memory."""

    _known: dict[int, tuple["weakref.ref[torch.Tensor]", str]] = field(default_factory=dict)

    def learn(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Learn the names of parameters."""
        for name, parameter in parameters:
            self._known[id(parameter)] = weakref.ref(parameter), name

    def of(self, parameter: torch.Tensor) -> str:
        """Return the parameter's name, or a description of one that has none."""
        known, name = self._known.get(id(parameter), (None, ""))
        if known is not None and known() is parameter:
            return name
        return f"parameter {list(parameter.shape)}"
