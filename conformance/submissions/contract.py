"""The adapter functions of a component, which a submission defines, and how each is called."""

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["wrapper", "optimizer", "pair", "part", "engine"]


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
        kind: a wrapper around a module, an optimizer, a pair of the two, a part of the training loop around them, or an
            engine, which owns the whole of a training step. No assignment asks for an engine.
        get: makes the wrapper, the optimizer or the engine; the first function of a part.
        after_backward: is called between backward and the optimizer's step.
        batch_start: is called at the start of a training step.
        more: further functions of a part.
        wrappers: of a pair, whose `get` makes the optimizer: the wrappers, of which the first that a submission has is
            used.
    """

    name: str
    kind: Kind
    get: Function
    after_backward: Function | None = None
    batch_start: Function | None = None
    more: tuple[Function, ...] = ()
    wrappers: tuple["Contract", ...] = ()

    @property
    def functions(self) -> tuple[Function, ...]:
        """All adapter functions of the component; of a pair, those of the optimizer."""
        return tuple(f for f in (self.get, self.after_backward, self.batch_start, *self.more) if f is not None)

    @property
    def wrapper(self) -> "Contract | None":
        """The contract of the wrapper, if there is one."""
        return self if self.kind == "wrapper" else next(iter(self.wrappers), None)

    @property
    def optimizer(self) -> Function | None:
        """The function that makes the optimizer, if there is one."""
        return self.get if self.kind in {"optimizer", "pair"} else None

    @property
    def has_optimizer(self) -> bool:
        """Whether the component decides how parameters are updated."""
        return self.optimizer is not None or self.kind == "engine"

    @property
    def alternatives(self) -> tuple["Contract", ...]:
        """A pair with each of its wrappers; any other contract by itself."""
        return tuple(replace(self, wrappers=(one,)) for one in self.wrappers) or (self,)

    @property
    def takes_bucket_size(self) -> bool:
        """Whether the adapter of the wrapper takes a bucket size; of a pair, of one of the wrappers."""
        own = self.kind == "wrapper" and len(self.get.parameters) > 1
        return own or any(one.takes_bucket_size for one in self.wrappers)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "Contract":
        """Return the contract that `dataclasses.asdict` took apart, also after a trip through JSON text."""
        once = {name: plain[name] and _function(plain[name]) for name in ("get", "after_backward", "batch_start")}
        wrappers = tuple(map(cls.from_json, plain["wrappers"]))
        return cls(plain["name"], plain["kind"], **once, more=tuple(map(_function, plain["more"])), wrappers=wrappers)


def part(name: str, *functions: Function) -> Contract:
    """Return the contract of a part of the training loop."""
    return Contract(name, "part", functions[0], more=functions[1:])


def _function(plain: dict[str, Any]) -> Function:
    return Function(plain["name"], tuple(plain["parameters"]), plain["keywords"])
