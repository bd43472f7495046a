"""The usual mistakes behind a failure of a check, in the words that its diagnosis would use."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from conformance.checks.check import Check, Violation
from conformance.components.component import Component
from conformance.diagnosis.gradient_mistakes import GRADIENT_MISTAKES
from conformance.diagnosis.training_mistakes import TRAINING_MISTAKES
from conformance.explanation.topic import Topic
from conformance.explanation.topics import topic

_FIT_ALL = {"never synchronised", "never trained"}  # mistakes that most checks rule out


def usual_mistakes(component: Component, check: Check) -> list[str]:
    """Return the usual mistakes, those that are special to the check first."""
    own = [check.advice, *advice_in(check.assertion)]
    ruled_out = [KNOWN[name] for name in check.rules_out if name not in _FIT_ALL]
    shared = mistakes_of(topic(component, check), component)
    return list(dict.fromkeys(text for text in (*own, *ruled_out, *shared) if text))


def mistakes_of(about: Topic, component: Component) -> list[str]:
    """Return the mistakes of a topic that this kind of component can have."""
    possible = {
        "wrapper": GRADIENT_MISTAKES.keys(),
        "optimizer": TRAINING_MISTAKES.keys(),
        "pair": KNOWN.keys(),
        "engine": KNOWN.keys(),
    }.get(component.contract.kind, set[str]())
    return [KNOWN.get(one, one) for one in about.mistakes if one in possible or one not in KNOWN]


def advice_in(assertion: Callable[..., Any]) -> Iterator[str]:
    """Yield the advice that an assertion gives where it raises `Violation(message, advice)`, as its source has it."""
    while isinstance(assertion, partial):
        assertion = assertion.func
    source = ast.parse(textwrap.dedent(inspect.getsource(assertion)))
    for call in ast.walk(source):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == Violation.__name__:
            for part in (part for given in call.args[1:] for part in ast.walk(given)):
                if isinstance(part, ast.Name):
                    words = getattr(assertion, "__globals__", {}).get(part.id)
                    yield from [words] if isinstance(words, str) and words.endswith((".", "?")) else []
                elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


KNOWN = {
    name: f"*{name}*: {'the gradient is ' if name in GRADIENT_MISTAKES else ''}{one.seen}. {one.advice}"
    for name, one in (GRADIENT_MISTAKES | TRAINING_MISTAKES).items()
}
