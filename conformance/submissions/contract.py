"""The adapter functions of a component, which a submission defines, and how each is called."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Function:
    """One adapter function: its name, its positional parameters, and whether it takes keyword arguments too."""

    name: str
    parameters: tuple[str, ...]
    keywords: bool = False

    def __str__(self) -> str:
        return f"{self.name}({', '.join([*self.parameters, *(['**kwargs'] if self.keywords else [])])})"


@dataclass(frozen=True)
class Contract:
    """The adapter functions of one component.

    Attributes:
        name: of the component, as in reports.
        kind: a wrapper around a module, an optimizer, or a part of the training loop around them.
        get: makes the wrapper or the optimizer; the first function of a part.
        after_backward: is called between backward and the optimizer's step.
        batch_start: is called at the start of a training step.
        more: further functions of a part.
    """

    name: str
    kind: Literal["wrapper", "optimizer", "part"]
    get: Function
    after_backward: Function | None = None
    batch_start: Function | None = None
    more: tuple[Function, ...] = ()

    @property
    def functions(self) -> tuple[Function, ...]:
        """All adapter functions of the component."""
        return tuple(f for f in (self.get, self.after_backward, self.batch_start, *self.more) if f is not None)

    @property
    def takes_bucket_size(self) -> bool:
        """Whether the adapter of the wrapper takes a bucket size."""
        return self.kind == "wrapper" and len(self.get.parameters) > 1

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "Contract":
        """Return the contract that `dataclasses.asdict` took apart, also after a trip through JSON text."""
        once = {name: plain[name] and _function(plain[name]) for name in ("get", "after_backward", "batch_start")}
        return cls(plain["name"], plain["kind"], **once, more=tuple(map(_function, plain["more"])))


def part(name: str, *functions: Function) -> Contract:
    """Return the contract of a part of the training loop."""
    return Contract(name, "part", functions[0], more=functions[1:])


def _function(plain: dict[str, Any]) -> Function:
    return Function(plain["name"], tuple(plain["parameters"]), plain["keywords"])
