"""Advice on exceptions that many submissions raise, as a table: the first row that fits an exception counts."""

import re
from collections.abc import Callable
from typing import NamedTuple

from conformance.checks.words import ONE_FILE
from conformance.diagnosis.limits import limit_met
from conformance.scenarios.drawn import Drawn
from conformance.scenarios.scenario import AddGroup, Scenario


class Advice(NamedTuple):
    """A row: a pattern in "KIND: message", the advice, the scenarios that it applies to, and whether all ranks raised.

    The advice may name `{ranks}` and `{smallest}`, the number of parameters in the smallest group.
    """

    pattern: str
    advice: str
    applies: Callable[[Scenario], bool] = lambda _: True
    on_all_ranks: bool | None = None


def advise(kind: str, message: str, drawn: Drawn, *, on_all_ranks: bool) -> str:
    """Return advice on an exception that the submission raised on all ranks, or on some; empty if there is none."""
    said = f"{kind}: {message}"
    if type(drawn) is Scenario:  # of a wrapper or an optimizer
        for row in _ON_TRAININGS:
            if (
                row.on_all_ranks in {None, on_all_ranks}
                and re.search(row.pattern, said, re.DOTALL)
                and row.applies(drawn)
            ):
                return row.advice.format(ranks=drawn.world_size, smallest=_smallest_group(drawn))
    found = next((row.advice for row in _ON_CALLS if re.search(row.pattern, said, re.DOTALL)), "")
    return found or limit_met(kind, message)


def _smallest_group(scenario: Scenario) -> int:
    added = [len(event.group.parameters) for event in scenario.schedule if isinstance(event, AddGroup)]
    groups = [len(group.parameters) for group in scenario.optimizer.groups]
    return min(added + (groups or [len(scenario.model.shapes) - sum(added)]))


def _rank_without_parameters(scenario: Scenario) -> bool:
    return _smallest_group(scenario) < scenario.world_size


# fmt: off
_ON_TRAININGS = (
    Advice("empty parameter list",
        "Here {ranks} ranks share a parameter group of size {smallest}, so a rank owns no parameter, and made an inner "
        "optimizer all the same. Such a rank must have no inner optimizer, and still take part in every broadcast.",
        _rank_without_parameters),
    Advice("empty parameter list",
        "Every rank can own a parameter here. Was `params`, which may be a generator, read twice "
        "(`params = list(params)` keeps it)? Or was the inner optimizer made before the rank had any parameters?",
        on_all_ranks=True),
    Advice("empty parameter list",
        "The way in which parameters are dealt leaves this rank none, as dealing by bytes or by elements may. Such a "
        "rank must have no inner optimizer, and still take part in every broadcast."),
    Advice("^KeyError: .*Parameter containing",
        "A table made when wrapping holds only the parameters that required gradients then. That may change: look at "
        "`requires_grad` again in later steps, and extend the table.",
        lambda scenario: not (scenario.replicated or scenario.averaged)),
    Advice("^KeyError: .*Parameter containing",
        "Here a parameter group holds parameters that do not require gradients. Give every parameter an owner, or skip "
        "these parameters in `step` as well as in the table of owners.",
        lambda scenario: bool(scenario.model.frozen)),
    Advice("^KeyError: .*Parameter containing",
        "The table from parameters to owners lacks parameters of groups that were added later. torch's "
        "`Optimizer.__init__` calls `add_param_group` for each group: extend the table there."),
    Advice("^KeyError: ['\"]*(initial_)?lr['\"]*$",
        "`optimizer.param_groups` has no such option. Call `Optimizer.__init__` with the inner optimizer's `.defaults` "
        "as `defaults`, or with `**kwargs` at least, so that each group holds all its options."),
    Advice("optimizer must support momentum",
        "The scheduler looks for `momentum` or `betas` in `optimizer.defaults`: give the inner optimizer's defaults to "
        "`Optimizer.__init__`."),
    Advice(r"Missing key\(s\) in state_dict",
        "The wrapper's `load_state_dict` must accept what its `state_dict` returns. The methods of `nn.Module` fit "
        "together; names in the inner model's `state_dict` lack the prefix. Override neither method, or both alike."),
    Advice("is not an Optimizer|no attribute 'param_groups'",
        "Schedulers accept only a `torch.optim.Optimizer`, and users write to its `param_groups`: let the sharded "
        "optimizer inherit from it."),
    Advice("does not require grad",
        "The closure ran with gradients disabled: wrap the call in `torch.enable_grad()`.",
        lambda scenario: scenario.closure),
    Advice("'dict'",
        "`params` may be a list of parameter groups, as in torch's optimizers: dicts with a key `params` and their own "
        "options. Take the parameters from each group.",
        lambda scenario: bool(scenario.optimizer.groups)),
    Advice("appear in more than one parameter group",
        "The inner optimizer was given parameters that it already has. When a group is added, give the inner optimizer "
        "only those parameters of this group that the rank owns."),
    Advice("^TypeError: .*NoneType",
        "`bucket_size_mb=None` asks for one bucket without a limit: do not compute a number of bytes from it.",
        lambda scenario: scenario.bucket_size_mb is None),
    Advice("'NoneType' object has no attribute 'step'",
        "A rank that owns no parameter has no inner optimizer to step: skip the step there, and still take part in "
        "every broadcast.",
        _rank_without_parameters),
    Advice("dtype",
        "The parameters here have two dtypes, and a flat tensor has one: group gradients by dtype, also in buckets.",
        lambda scenario: len(set(scenario.model.dtypes.values())) > 1),
)
_UNEXPECTED = r"\(\) .*(unexpected keyword|positional) argument"
_ON_CALLS = (
    Advice(r"^FileNotFoundError: .*checkpoint\.pt[^'\"]", ONE_FILE),
    Advice(r"step\(\).*positional argument", "`step` may be called with a closure: `def step(self, closure=None)`."),
    Advice(r"__init__\(\).*'defaults'",
        "Give the options to `Optimizer.__init__` too, as `defaults`: `super().__init__(params, kwargs)`."),
    Advice(f"zero_grad{_UNEXPECTED}",
        "`zero_grad` must accept the same arguments as in torch: `def zero_grad(self, set_to_none=True)`."),
    *(Advice(f"{name}{_UNEXPECTED}", f"The wrapper's `{name}` must take `*inputs, **kwargs` and pass them on.")
        for name in ("forward", "__call__")),
)
# fmt: on
