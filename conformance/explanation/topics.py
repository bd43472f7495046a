"""Finds what a check is about: that of its aspect, or of its theme."""

from conformance.checks.check import Check, Theme
from conformance.components.component import Component
from conformance.explanation.aspects import OF_ASPECTS
from conformance.explanation.themes import OF_THEMES
from conformance.explanation.topic import Topic

_SAY_MORE: tuple[Theme, ...] = ("waiting", "precision", "kinds of parameters and layers")


def topic(component: Component, check: Check) -> Topic:
    """Return the topic of the theme if that says more, else of the aspect, else of the theme.

    Numbers mean another thing in each component: there, it is the topic of what the component promises first.
    """
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
