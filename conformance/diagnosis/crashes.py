"""Describes a run that did not end: an exception in the submission, a rank that died, a hang."""

import re

from conformance.execution.outcome import Broken
from conformance.scenarios.drawn import Drawn
from conformance.scenarios.scenario import (
    AddGroup,
    Decay,
    Freeze,
    LoadWeights,
    OneCycle,
    Save,
    SaveAndLoad,
    Scenario,
    SetOption,
    Unfreeze,
)
from pytest_ddp.errors import ProtocolError
from pytest_ddp.outcomes.failure import headline
from pytest_ddp.outcomes.outcome import Deadlocked, Died, Raised, TimedOut
from pytest_ddp.planning.world import World

_OUTPUT_LINES = 8
_MESSAGE_LINES = 4  # of an exception, after the first
_NOT_THEIRS = ("/conformance/ranks/", "/conformance/components/", "/torch/distributed/")
_EVENT_WORDS = {
    SetOption: "a write to `optimizer.param_groups`",
    Decay: "making a scheduler for the optimizer",
    OneCycle: "making a scheduler for the optimizer",
    AddGroup: "`add_param_group`",
    Save: "`state_dict`",
    SaveAndLoad: "`state_dict` and `load_state_dict`",
    LoadWeights: "`load_state_dict` of the wrapped model",
    Unfreeze: "`requires_grad_()`",
    Freeze: "`requires_grad_()`",
}


def describe_crash(broken: Broken, drawn: Drawn) -> str:
    """Return what happened, on which rank and where, with the submission's own part of the traceback."""
    root = broken.root
    lines = [headline(broken.outcomes, World(len(broken.outcomes)))]
    if isinstance(root, Raised):
        first, *others = root.message.strip().splitlines() or [""]
        lines[0] = f"Rank {root.rank} raised {root.kind} {_place(broken, drawn)}: {first}"
        lines += [root.traceback, *(f"  {line}" for line in others[:_MESSAGE_LINES])]
    elif isinstance(root, Died | TimedOut | Deadlocked):
        frames = root.stack.rstrip().splitlines()
        lines += [line for line in frames if not any(part in line for part in _NOT_THEIRS)]
        lines += [f"  | {line}" for line in root.output.strip().splitlines()[-_OUTPUT_LINES:]]
    return "\n".join(line for line in lines if line)


def advise_on_crash(broken: Broken, drawn: Drawn) -> str:
    """Return the most frequent cause of such a crash and what to do about it; empty if there is none to name."""
    root = broken.root
    if isinstance(root, TimedOut) and not any(one.collectives for one in broken.outcomes):
        return (
            "No rank had entered a collective. Is there a loop that does not end, or a loop whose time grows with the "
            "square of the number of elements?"
        )
    if isinstance(root, TimedOut | Deadlocked):
        return (
            "Most often a rank waits for a collective which others never enter. Do all ranks launch the same "
            "collectives in the same order, whichever gradients or parameters they have? The order of a set differs "
            "between ranks."
        )
    if isinstance(root, Died):
        return _advise_on_death(root)
    if isinstance(root, Raised) and root.kind == ProtocolError.__name__:
        return "The submission wrote to the connection between the rank and the judge, which it did not open."
    if isinstance(root, Raised):
        return _advise_on_exception(root, drawn) if isinstance(drawn, Scenario) else _advise_on_call(root.message)
    return ""


def _advise_on_death(root: Died) -> str:
    if root.signal == "SIGABRT":
        return (
            "gloo ends a process whose tensor in a collective has another size than on the other ranks. Do all ranks "
            "give tensors of the same sizes, in the same order, to their collectives?"
        )
    if root.signal is None:
        return "The rank ended its own process, by `os._exit` or the like. A rank must not end its process."
    return ""


_OWNERS = (
    "The table from parameters to owners lacks parameters of groups that were added later. torch's "
    "`Optimizer.__init__` calls `add_param_group` for each group: extend the table there."
)
_FROZEN_TOO = (
    "Here a parameter group holds parameters that do not require gradients. Give every parameter an owner, or skip "
    "these parameters in `step` as well as in the table of owners."
)
_TRAINED_AT_WRAPPING = (
    "A table made when wrapping holds only the parameters that required gradients then. That may change: look at "
    "`requires_grad` again in later steps, and extend the table."
)


def _advise_on_exception(root: Raised, scenario: Scenario) -> str:
    """Return advice on an exception that many submissions raise."""
    message = root.message
    if "empty parameter list" in message:
        return _advise_on_no_parameters(scenario)
    if root.kind == "KeyError" and "Parameter containing" in message:
        if not (scenario.replicated or scenario.averaged):
            return _TRAINED_AT_WRAPPING
        return _FROZEN_TOO if scenario.model.frozen else _OWNERS
    if root.kind == "KeyError" and message.strip("'\"") in {"lr", "initial_lr"}:
        return (
            "`optimizer.param_groups` has no such option. Call `Optimizer.__init__` with the inner optimizer's "
            "`.defaults` as `defaults`, or with `**kwargs` at least, so that each group holds all its options."
        )
    if "optimizer must support momentum" in message:
        return (
            "The scheduler looks for `momentum` or `betas` in `optimizer.defaults`: give the inner optimizer's "
            "defaults to `Optimizer.__init__`."
        )
    if "Missing key(s) in state_dict" in message:
        return (
            "The wrapper's `load_state_dict` must accept what its `state_dict` returns. The methods of `nn.Module` fit "
            "together; names in the inner model's `state_dict` lack the prefix. Override neither method, or both alike."
        )
    if "is not an Optimizer" in message or "no attribute 'param_groups'" in message:
        return (
            "Schedulers accept only a `torch.optim.Optimizer`, and users write to its `param_groups`: let the sharded "
            "optimizer inherit from it."
        )
    if "does not require grad" in message and scenario.closure:
        return "The closure ran with gradients disabled: wrap the call in `torch.enable_grad()`."
    return _advise_on_arguments(root, scenario) or _advise_on_call(message)


def _advise_on_no_parameters(scenario: Scenario) -> str:
    """Return advice on an optimizer that was made without parameters."""
    fewest = _smallest_group(scenario)
    if fewest >= scenario.world_size:
        return (
            "Every rank can own a parameter here. Was `params`, which may be a generator, read twice "
            "(`params = list(params)` keeps it)? Or was the inner optimizer made before the rank had any parameters?"
        )
    in_groups = scenario.optimizer.groups or any(isinstance(event, AddGroup) for event in scenario.schedule)
    where = " in a group" if in_groups else ""
    return (
        f"There are {scenario.world_size} ranks and {fewest} parameter{'s' * (fewest > 1)}{where}, so a rank owns no "
        "parameter, and made an inner optimizer all the same. Such a rank must have no inner optimizer, and still take "
        "part in every broadcast."
    )


def _advise_on_arguments(root: Raised, scenario: Scenario) -> str:
    """Return advice on arguments of an unexpected type, and on parameters that are given twice."""
    if "'dict'" in root.message and scenario.optimizer.groups:
        return (
            "`params` may be a list of parameter groups, as in torch's optimizers: dicts with a key `params` and their "
            "own options. Take the parameters from each group."
        )
    if "appear in more than one parameter group" in root.message:
        return (
            "The inner optimizer was given parameters that it already has. When a group is added, give the inner "
            "optimizer only those parameters of this group that the rank owns."
        )
    if root.kind == "TypeError" and "NoneType" in root.message and scenario.bucket_size_mb is None:
        return "`bucket_size_mb=None` asks for one bucket without a limit: do not compute a number of bytes from it."
    if "'NoneType' object has no attribute 'step'" in root.message and _smallest_group(scenario) < scenario.world_size:
        return (
            "A rank that owns no parameter has no inner optimizer to step: skip the step there, and still take part in "
            "every broadcast."
        )
    if "dtype" in root.message and len(set(scenario.model.dtypes.values())) > 1:
        return (
            "The parameters here have two dtypes, and a flat tensor has one: group gradients by dtype, also in buckets."
        )
    return ""


def _smallest_group(scenario: Scenario) -> int:
    """Return the number of parameters in the smallest group."""
    added = [len(event.group.parameters) for event in scenario.schedule if isinstance(event, AddGroup)]
    groups = [len(group.parameters) for group in scenario.optimizer.groups]
    return min(added + (groups or [len(scenario.model.shapes) - sum(added)]))


def _advise_on_call(message: str) -> str:
    """Return advice on a function that rejects the arguments of a call."""
    if "step()" in message and "positional argument" in message:
        return "`step` may be called with a closure: `def step(self, closure=None)`."
    if "__init__()" in message and "'defaults'" in message:
        return "Give the options to `Optimizer.__init__` too, as `defaults`: `super().__init__(params, kwargs)`."
    called = re.search(r"(zero_grad|forward|__call__)\(\) .*(unexpected keyword|positional) argument", message)
    if called and called[1] == "zero_grad":
        return "`zero_grad` must accept the same arguments as in torch: `def zero_grad(self, set_to_none=True)`."
    if called:
        return f"The wrapper's `{called[1]}` must take `*inputs, **kwargs` and pass them on to the module."
    return ""


def _place(broken: Broken, drawn: Drawn) -> str:
    where = broken.place
    if where is None:
        return "outside its run"
    stage, step = where
    if step is None or not isinstance(drawn, Scenario):
        return f"in {stage}"
    if stage.startswith("a change of the optimizer"):
        kinds = [_EVENT_WORDS[type(event)] for event in drawn.events(step) if type(event) in _EVENT_WORDS]
        stage = " or ".join(kinds) or stage
    return f"in {stage}, at step {min(step + 1, drawn.steps)} of {drawn.steps}"
