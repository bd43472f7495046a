"""Describes what wrong parameters have in common and right ones do not."""

import math
from collections.abc import Sequence

from conformance.checks.words import listed
from conformance.scenarios.model_spec import ModelSpec

_MATRIX = 2


def in_common(spec: ModelSpec, wrong: Sequence[str], every: Sequence[str]) -> tuple[str, str]:
    """Describe the wrong parameters of a model.

    Args:
        spec: the model.
        wrong: names of the wrong parameters, in forward order.
        every: names of all parameters that could be wrong, in forward order.

    Returns:
        Words for the wrong parameters; a sentence of advice that begins with a space, or an empty string.
    """
    for kind, words, advice in _kinds(spec, every):
        if set(wrong) == kind:
            return words, advice
    which, count = listed(wrong), len(wrong)
    sizes = {name: math.prod(spec.shapes[name]) for name in every}
    right = [sizes[name] for name in every if name not in wrong]
    if right and max(sizes[name] for name in wrong) < min(right):
        most = max(sizes[name] for name in wrong)
        return f"every parameter with up to {most} elements", " Does the code treat small tensors differently?"
    if list(wrong) == list(every[:count]):
        return which, " Backward computes their gradients last: is the last bucket launched and waited for?"
    if list(wrong) == list(every[-count:]):
        return which, " Backward computes their gradients first: is the first bucket lost, or overwritten?"
    return which, ""


def _kinds(spec: ModelSpec, every: Sequence[str]) -> list[tuple[set[str], str, str]]:
    """Return kinds of parameters, the most specific first: names, words, advice."""
    waits = spec.branch not in {"none", "order_by_rank"}
    waiting = " A parameter without a gradient must not delay its bucket for ever: send the rest after backward."
    kinds = [
        ({"scale"} if spec.scale else set(), "the 0-dimensional parameter", " Do not skip tensors without dimensions."),
        (
            {f"layers.{spec.tied[0]}.weight"} if spec.tied else set(),
            "the parameter that two layers share",
            " The model has it twice: reduce it once.",
        ),
        (
            {f"layers.{index}.weight" for index in (spec.transposed, spec.gapped) if index is not None},
            "the parameter that is not contiguous",
            " `.contiguous()` makes a copy: copy the result back into the gradient itself.",
        ),
        (
            {name for name in spec.frozen if name in every},
            "the parameters that were frozen at wrapping",
            " Look at `requires_grad` again in later steps.",
        ),
        (
            {name for name in every if name.startswith("branches.")} if waits else set(),
            "the parameters that not every rank uses in every step",
            " A rank that does not use them needs the average too: write it back even if `.grad` was None.",
        ),
        (set(every), "every parameter", waiting if waits else ""),
        (
            {name for name in every if len(spec.shapes[name]) < _MATRIX},
            "every one-dimensional parameter (biases)",
            " Does a condition on `dim()` or on the name exclude them?",
        ),
    ]
    return [kind for kind in kinds if kind[0]]
