"""Finds what a check is about: that of its aspect, or of its theme."""

from conformance.checks.check import Check, Theme
from conformance.components.component import Component
from conformance.explanation.aspects import OF_ASPECTS
from conformance.explanation.pictures import held
from conformance.explanation.themes import OF_THEMES
from conformance.explanation.topic import Topic

_SAY_MORE: tuple[Theme, ...] = ("waiting", "precision", "kinds of parameters and layers")
_NOTHING_OWNED = Topic(
    "A model may have fewer parameters than there are ranks. Some ranks then own nothing, and all others wait for them "
    "in every collective.",
    (
        "A rank without parameters makes an optimizer of an empty list, which torch refuses: it needs none there.",
        "A rank without parameters leaves `step` early: the others wait for ever in a broadcast that it never joins.",
    ),
    held(
        "           | owns    | inner step | then, in the broadcasts",
        "rank 0     | w       | w          | sends w, receives b",
        "rank 1     | b       | b          | sends b, receives w",
        "rank 2     | nothing | nothing    | receives w and b",
        says="A rank that owns nothing takes part in each broadcast, and calls the closure as often as the others.",
    ),
)
_OF_CHECKS = dict.fromkeys(("trains[fewer_parameters_than_ranks]", "closure[ranks_without_parameters]"), _NOTHING_OWNED)


def topic(component: Component, check: Check) -> Topic:
    """Return the topic of the check alone; of the theme if that says more; of the aspect; else of the theme.

    Numbers mean another thing in each component: there, it is the topic of what the component promises first.
    """
    if check.id in _OF_CHECKS:
        return _OF_CHECKS[check.id]
    if check.theme in _SAY_MORE:
        return OF_THEMES[check.theme]
    aspects = [aspect.name for aspect in component.aspects if check.id in aspect.checks and aspect.name in OF_ASPECTS]
    if aspects:
        return OF_ASPECTS[aspects[-1]]  # a check of two aspects: the special one stands last
    return promise(component) if check.theme == "numbers" else OF_THEMES[check.theme]


def promise(component: Component) -> Topic:
    """Return the topic of the first essential aspect of a component."""
    names = (aspect.name for aspect in component.aspects if aspect.essential)
    return next((OF_ASPECTS[name] for name in names if name in OF_ASPECTS), OF_THEMES["numbers"])
