"""What a rank is asked, and what it answers; both with both directions of their trip.

An answer holds tensors and plain facts: whatever a rank sends, there is nothing else to make of it.
"""

import importlib
from dataclasses import dataclass, field, fields
from functools import cache
from json import dumps, loads  # by name: a submission may replace `json.dumps`
from typing import Any, Literal, Self, cast, get_args, get_origin, get_type_hints

import torch

from conformance.protocol.codec import MalformedError, pack, unpack
from conformance.scenarios.drawn import drawn_from_json
from conformance.submissions.contract import Contract
from conformance.submissions.location import Location
from conformance.workload.numbers import Tensors, under


@dataclass(frozen=True)
class Task:
    """One rank's part of a scenario or a case."""

    submission: Location  # where the code under test is
    contract: Contract  # which component, and its functions
    exercise: str  # the function that carries it out on the rank, as "module:function"
    drawn: Any  # the scenario or the case; the seed of its numbers is none of a rank's business, and 0
    given: Tensors  # this rank's numbers
    phase: int = 0  # which of the worlds this rank belongs to
    folder: str = ""  # shared by all ranks of all worlds
    stubs: tuple[str, ...] = ()  # names of absent packages that this submission needs a stub for

    def encode(self) -> bytes:
        """Return the task as bytes."""
        drawn = {"drawn": {**self.drawn.to_json(), "seed": 0}, "kinds": type(self.drawn).__module__}
        return pack(_facts(self, "drawn", "given") | drawn, self.given)

    @classmethod
    def decode(cls, data: bytes) -> "Task":
        """Return the task that `encode` made; import the module of what is drawn."""
        header, given = unpack(data)
        importlib.import_module(header.pop("kinds"))
        header["submission"] = Location.from_json(header["submission"])
        header["contract"] = Contract.from_json(header["contract"])
        header["drawn"] = drawn_from_json(header["drawn"])
        header["stubs"] = tuple(header["stubs"])
        return cls(**header, given=given)


@dataclass(frozen=True)
class Happening:
    """Something that happened in a step, in order.

    `began`: forward was over, and backward about to begin; `reached`: backward reached the activation after layer
    `layer`, so that all later gradients are ready; `launched`: the collective `op` of `group` was entered with `bytes`
    bytes of `dtype`; `waited`: somebody began to wait for the one of this `number` (in gated scenarios); `returned`:
    backward was over; `finished`: so was the adapter's `on_after_backward`. What the optimizer's step launches comes
    after that. `elsewhere` tells, in gated scenarios, that another thread than backward's did it.
    """

    what: Literal["began", "reached", "launched", "waited", "returned", "finished"]
    layer: int = -1
    op: str = ""
    bytes: int = 0
    dtype: str = ""
    group: str = ""
    number: int = 0
    elsewhere: bool = False


@dataclass(frozen=True)
class ClosureCall:
    """How one `step(closure)` went: calls of the closure, whether gradients were enabled, and the value returned."""

    calls: int
    grad_enabled: bool
    returned: float | None
    loss: float


class Sent(dict[str, torch.Tensor]):
    """What a rank sent, by name. Looking for something else raises MalformedError: a rank of ours sends all of it."""

    def __missing__(self, name: str) -> torch.Tensor:
        raise MalformedError(f"it has no tensor {name!r}")


@dataclass(frozen=True)
class Answer:
    """What one rank answered."""

    tensors: Tensors  # what was asked, by name
    unawaited: list[str] = field(default_factory=list)  # if gated, operations that nobody waited for, with their lines
    stubbed: list[str] = field(default_factory=list)  # what was offered in place of something absent, and used
    borrowed: list[str] = field(default_factory=list)  # torch's own implementations that were used

    def missing(self, _: Any) -> list[str]:
        """Return what a rank that did its whole part of what was drawn would have sent: names of tensors, and facts."""
        return []

    def encode(self) -> bytes:
        """Return the answer as bytes."""
        return pack(_facts(self, "tensors"), self.tensors)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the answer that `encode` made.

        Raises:
            MalformedError: the bytes are something else.
        """
        facts, tensors = unpack(data)
        try:
            return cls(Sent(tensors), **cls.facts_from_json(facts))
        except (KeyError, TypeError) as error:
            raise MalformedError(f"not an answer of a rank of ours: {error}") from error

    @classmethod
    def facts_from_json(cls, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the facts as they were before they went through JSON; raise TypeError for what is none."""
        hints = _types(cast("Any", cls))
        if absent := sorted(hints.keys() - facts.keys() - {"tensors"}):
            raise TypeError(f"it has no {absent[0]}")
        if wrong := [name for name, fact in facts.items() if not _is_a(fact, hints[name])]:
            raise TypeError(f"its {wrong[0]} is {facts[wrong[0]]!r}")
        return facts


@dataclass(frozen=True)
class Observation(Answer):
    """What one rank saw of a training.

    Its tensors are "wrapped/NAME" and "buffer/NAME" right after wrapping; "gradient/STEP/NAME" after the adapter's
    `on_after_backward`, where there is one; "written/STEP/NAME" then, of parameters that backward has changed;
    "parameter/STEP/NAME" after the optimizer's step; "twin/STEP/NAME" a second model's gradients;
    "evaluation/STEP/output" what a forward in evaluation mode gave before the step.
    """

    losses: list[float] = field(default_factory=list)  # per step
    happenings: list[list[Happening]] = field(default_factory=list)  # per step
    hooks: list[int] = field(default_factory=list)  # per step, hooks on parameters after it
    tensor_hooks: list[str] = field(default_factory=list)  # parameters with a hook that runs before `.grad` is there
    alive: list[int] = field(default_factory=list)  # per step, if counted, tensors and handles alive after it
    closures: list[ClosureCall] = field(default_factory=list)  # per step, where the scenario uses closures
    offers_no_sync: bool = False  # whether the wrapped model offers it
    offers_module: bool = False  # whether the wrapped model has one, which is not the wrapped model itself
    offers_state_dict: bool = False  # whether the wrapped model offers one to load
    early_gradients: list[str] = field(default_factory=list)  # parameters that had a gradient right after wrapping
    generators: list[str] = field(default_factory=list)  # global random generators that wrapping has moved
    moved: list[str] = field(default_factory=list)  # parameters with other memory than before training, once per step
    wrong_modes: list[str] = field(default_factory=list)  # the model's mode in each forward, where it was a wrong one
    forwards: int = 0  # how many times the model was called, as a module with its hooks
    altered: list[str] = field(default_factory=list)  # places in a saved state that loading it has changed
    lost: list[str] = field(default_factory=list)  # keys of parameter groups that loading has removed or changed
    unlisted: list[str] = field(default_factory=list)  # parameters of the optimizer that none of its groups holds
    uncleared: list[str] = field(default_factory=list)  # parameters with a gradient after `zero_grad`, at the end
    dropped: list[str] = field(default_factory=list)  # parameters whose gradient that `zero_grad` set to None
    extra_parameters: list[str] = field(default_factory=list)  # parameters that the wrapper adds to the model's
    state_bytes: int | None = None  # of optimizer state on this rank at the end; None if no optimizer could be found
    spoiled: list[str] = field(default_factory=list)  # if collectives gave NaN at last, parameters with such a gradient
    process_bytes: int | None = None  # if weighed, what this process needs for the state; None if that is not known

    @property
    def wrapped(self) -> Tensors:
        """Parameters right after wrapping."""
        return under(self.tensors, "wrapped/")

    @property
    def buffers(self) -> Tensors:
        """Buffers right after wrapping."""
        return under(self.tensors, "buffer/")

    def gradients(self, step: int) -> Tensors:
        """Return the gradients of a step, of the parameters that had one."""
        return under(self.tensors, f"gradient/{step}/")

    def written(self, step: int) -> Tensors:
        """Return the parameters that were changed between forward and the optimizer's step."""
        return under(self.tensors, f"written/{step}/")

    def evaluation(self, step: int) -> Tensors:
        """Return the output in evaluation mode before a step, as "output"; nothing if it was no tensor."""
        return under(self.tensors, f"evaluation/{step}/")

    def twin(self, step: int) -> Tensors:
        """Return the gradients of the second model in a step."""
        return under(self.tensors, f"twin/{step}/")

    def parameters(self, step: int) -> Tensors:
        """Return the parameters after a step."""
        return under(self.tensors, f"parameter/{step}/")

    def missing(self, drawn: Any) -> list[str]:
        """Return what a rank that did its whole part would have sent: names of tensors, and facts of each step."""
        moments = ["wrapped", *(f"parameter/{step}" for step in range(drawn.steps))]
        wanted = [f"{moment}/{name}" for moment in moments for name in drawn.model.shapes]
        short = [name for name in ("losses", "happenings") if len(getattr(self, name)) != drawn.steps]
        return [*short, *(name for name in wanted if name not in self.tensors)]

    @classmethod
    def facts_from_json(cls, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the facts as they were before they went through JSON; raise TypeError for what is none."""
        happenings = [[Happening(**one) for one in step] for step in facts["happenings"]]
        closures = [ClosureCall(**one) for one in facts["closures"]]
        return super().facts_from_json({**facts, "happenings": happenings, "closures": closures})


@cache
def _types(told: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields, by name."""
    return get_type_hints(told)


def _is_a(fact: Any, hint: Any) -> bool:
    """Whether what has come through JSON is of a type: of a field of an answer, or of what such a field holds."""
    given = get_args(hint)
    if isinstance(fact, Happening):
        return [type(value) for value in vars(fact).values()] == _HAPPENS
    if isinstance(fact, ClosureCall):
        return all(_is_a(value, _types(ClosureCall)[name]) for name, value in vars(fact).items())
    if get_origin(hint) is list:
        return isinstance(fact, list) and all(_is_a(one, given[0]) for one in fact)
    return type(fact) in (given or ((float, int) if hint is float else (hint,)))


_HAPPENS = [type(value) for value in vars(Happening("began")).values()]


def _facts(told: Any, *without: str) -> dict[str, Any]:
    """Return the fields of a dataclass but these; `pack` takes dataclasses in them, too."""
    return {one.name: getattr(told, one.name) for one in fields(told) if one.name not in without}


@dataclass(frozen=True)
class Probe:
    """What the adapters offer."""

    error: str = ""  # why they do not import, with the traceback of the submission's own files
    defined: list[str] = field(default_factory=list)  # components whose functions are all defined
    missing: dict[str, list[str]] = field(default_factory=dict)  # of components defined in part, functions that lack
    wrong_signatures: list[tuple[str, str]] = field(default_factory=list)  # component; why a function cannot be called
    unimplemented: str = ""  # which function of a component is not implemented, in words; empty if all are
    stubs: list[str] = field(default_factory=list)  # packages that a stub had to be offered for
    borrowed: list[str] = field(default_factory=list)  # torch's own implementations that were used

    def encode(self) -> bytes:
        """Return the probe as bytes."""
        return dumps(_facts(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the probe that `encode` made.

        Raises:
            MalformedError: the bytes are something else.
        """
        try:
            found = cls(**loads(data))
        except (ValueError, TypeError) as error:
            raise MalformedError(f"not what a rank of ours finds: {error}") from error
        if any(type(fact) is not type(getattr(cls(), name)) for name, fact in vars(found).items()):
            raise MalformedError(f"not what a rank of ours finds: {found}")
        return found
