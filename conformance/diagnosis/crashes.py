"""Says in words how a run broke: an exception of the submission's, a rank that died, a hang."""

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
from pytest_ddp.outcomes.failure import headline
from pytest_ddp.outcomes.outcome import Deadlocked, Died, Raised, TimedOut
from pytest_ddp.planning.world import World

_OUTPUT_LINES = 8
_MESSAGE_LINES = 4
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


def say(broken: Broken, drawn: Drawn) -> str:
    """Return what broke, on which rank, where, with the part of the traceback that is the submission's own."""
    root = broken.root
    lines = [headline(broken.outcomes, World(len(broken.outcomes)))]
    if isinstance(root, Raised):
        lines[0] = f"Rank {root.rank} raised {root.kind} in {_place(broken, drawn)}: {_first_line(root.message)}"
        lines += [root.traceback, *_rest(root.message)]
    elif isinstance(root, Died | TimedOut | Deadlocked):
        lines.append(_own_frames(root.stack))
        lines += [f"  | {line}" for line in root.output.strip().splitlines()[-_OUTPUT_LINES:]]
    return "\n".join(line for line in lines if line)


def explain(broken: Broken, drawn: Drawn) -> str:
    """Return what most often is behind a run that broke in this way, or nothing."""
    root = broken.root
    if isinstance(root, TimedOut) and not any(one.collectives for one in broken.outcomes):
        return (
            "No rank had entered a collective: is there a loop that does not end, or one whose time grows with the "
            "square of what it goes through?"
        )
    if isinstance(root, TimedOut | Deadlocked):
        return (
            "Most often this is a rank that waits for a collective which others never enter. Do all ranks launch "
            "the same collectives, in the same order, whatever their own gradients or parameters are? A set has an "
            "order of its own on each."
        )
    if isinstance(root, Died):
        return _explain_death(root)
    if isinstance(root, Raised):
        return _explain_exception(root, drawn) if isinstance(drawn, Scenario) else _explain_call(root.message)
    return ""


def _explain_death(root: Died) -> str:
    if root.signal == "SIGABRT":
        return (
            "gloo ends a process in which a collective has another size than on its peers. Do all ranks give the same "
            "tensors, in the same order, to each collective?"
        )
    if root.signal is None:
        return "The process was left by `os._exit` or the like: a rank must live until it is told to end."
    return ""


_OWNERS = (
    "A table from parameters to owners was made before all parameter groups were there, and never extended. torch's "
    "`Optimizer.__init__` calls `add_param_group` for each group: extend the table there."
)
_FROZEN_TOO = (
    "Here a parameter group holds parameters that do not require gradients. Give every parameter an owner, or pass "
    "over those in `step` as well as in the table of owners."
)
_TRAINED_AT_WRAPPING = (
    "A table from parameters was made when wrapping, of those that trained then. Which do may change: look at "
    "`requires_grad` again in later steps, and extend the table."
)


def _explain_exception(root: Raised, scenario: Scenario) -> str:
    """Return advice on exceptions that many submissions meet."""
    message = root.message
    if "empty parameter list" in message:
        return _explain_empty(scenario)
    if root.kind == "KeyError" and "Parameter containing" in message:
        if not (scenario.replicated or scenario.averaged):
            return _TRAINED_AT_WRAPPING
        return _FROZEN_TOO if scenario.model.frozen else _OWNERS
    if root.kind == "KeyError" and message.strip("'\"") in {"lr", "initial_lr"}:
        return (
            "`optimizer.param_groups` has no such option: give `Optimizer.__init__` as `defaults` the inner "
            "optimizer's own `.defaults`, or `**kwargs` at least, so that each group holds all its options."
        )
    if "optimizer must support momentum" in message:
        return (
            "The scheduler looks for `momentum` or `betas` in `optimizer.defaults`: give the defaults of the inner "
            "optimizer to `Optimizer.__init__`."
        )
    if "Missing key(s) in state_dict" in message:
        return (
            "What the wrapper's `state_dict` gives must be what its `load_state_dict` takes: `nn.Module`'s own fit "
            "together, and the model's alone has no prefix. Override neither, or both alike."
        )
    if "is not an Optimizer" in message or "no attribute 'param_groups'" in message:
        return (
            "Schedulers accept only a `torch.optim.Optimizer`, and users write to its `param_groups`: derive the "
            "sharded optimizer from it."
        )
    if "does not require grad" in message and scenario.closure:
        return "The closure ran with gradients disabled: wrap the call in `torch.enable_grad()`."
    return _explain_arguments(root, scenario) or _explain_call(message)


def _explain_empty(scenario: Scenario) -> str:
    """Return advice on an optimizer that was made without parameters."""
    fewest = _fewest_to_share(scenario)
    if fewest >= scenario.world_size:
        return (
            "Every rank can own a parameter here. Was `params`, which may be a generator, read more than once "
            "(`params = list(params)` keeps it), or the inner optimizer made before it had any?"
        )
    in_groups = scenario.optimizer.groups or any(isinstance(event, AddGroup) for event in scenario.schedule)
    where = " in a group" if in_groups else ""
    return (
        f"A rank that owns no parameter (here {scenario.world_size} ranks, {fewest} parameter{'s' * (fewest > 1)}"
        f"{where}) made an inner optimizer without any. Such a rank must skip the inner optimizer, and still take part "
        "in every broadcast."
    )


def _explain_arguments(root: Raised, scenario: Scenario) -> str:
    """Return advice on arguments of another kind than the one expected, and on parameters given twice."""
    if "'dict'" in root.message and scenario.optimizer.groups:
        return (
            "`params` may be parameter groups, as torch's optimizers take them: dicts with a key `params`, and options "
            "of their own: look for the parameters in each."
        )
    if "appear in more than one parameter group" in root.message:
        return (
            "The inner optimizer was given parameters that it has already: give it, of each group that is added, only "
            "those of the group that this rank owns."
        )
    if root.kind == "TypeError" and "NoneType" in root.message and scenario.bucket_size_mb is None:
        return "`bucket_size_mb=None` asks for one bucket that never is full: compute no number of bytes from it."
    if "'NoneType' object has no attribute 'step'" in root.message and _fewest_to_share(scenario) < scenario.world_size:
        return (
            "A rank that owns no parameter has no inner optimizer to step: skip that, and still take part in every "
            "broadcast."
        )
    if "dtype" in root.message and len(set(scenario.model.dtypes.values())) > 1:
        return "Parameters here have two dtypes, and a flat tensor has one: group gradients by dtype, also in buckets."
    return ""


def _fewest_to_share(scenario: Scenario) -> int:
    """Return how many parameters there are to share out at a time: those of the smallest group."""
    added = [len(event.group.parameters) for event in scenario.schedule if isinstance(event, AddGroup)]
    groups = [len(group.parameters) for group in scenario.optimizer.groups]
    return min(added + (groups or [len(scenario.model.shapes) - sum(added)]))


def _explain_call(message: str) -> str:
    """Return advice on a function that does not take what it is called with."""
    if "step()" in message and "positional argument" in message:
        return "`step` may be called with a closure: `def step(self, closure=None)`."
    if "__init__()" in message and "'defaults'" in message:
        return "Give `Optimizer.__init__` the options too, as `defaults`: `super().__init__(params, kwargs)`."
    called = re.search(r"(zero_grad|forward|__call__)\(\) .*(unexpected keyword|positional) argument", message)
    if called and called[1] == "zero_grad":
        return "`zero_grad` takes what torch's does: `def zero_grad(self, set_to_none=True)`."
    if called:
        return f"The wrapper's `{called[1]}` must take `*inputs, **kwargs` and pass them on to the module."
    return ""


def _own_frames(stack: str) -> str:
    """Drop the frames of this package and of torch's own collectives."""
    return "\n".join(line for line in stack.rstrip().splitlines() if not any(part in line for part in _NOT_THEIRS))


def _first_line(message: str) -> str:
    return message.strip().partition("\n")[0]


def _rest(message: str) -> list[str]:
    """Return the lines of a message after the first, not all of a long one."""
    return [f"  {line}" for line in message.strip().splitlines()[1 : _MESSAGE_LINES + 1]]


def _place(broken: Broken, drawn: Drawn) -> str:
    where = broken.place
    if where is None:
        return "an unknown place"
    stage, step = where
    if step is None or not isinstance(drawn, Scenario):
        return stage
    if stage.startswith("a change of the optimizer"):
        kinds = [_EVENT_WORDS[type(event)] for event in drawn.events(step) if type(event) in _EVENT_WORDS]
        stage = " or ".join(kinds) or stage
    return f"{stage}, at step {min(step + 1, drawn.steps)} of {drawn.steps}"
