"""Draws what the checks of a grade will draw, before there is a submission: graders that are forked later have it."""

from collections.abc import Iterable
from contextlib import suppress

from conformance.checks.check import Check
from conformance.components.component import Component
from conformance.judging.run_check import draws_of
from conformance.oracle.remembered import right_training
from conformance.scenarios.scenario import Scenario
from conformance.workload.numbers import data_seed


def draw_ahead(component: Component, checks: Iterable[Check], *, world_size: int, seed: int, examples: int) -> None:
    """Draw the scenarios of checks and train on them in one process; what fails here fails, and is told, in a grade."""
    for check in checks:
        with suppress(Exception):
            for drawn in draws_of(
                component, check, str(seed), world_size=world_size, seed=seed, examples=examples
            ).all():
                if isinstance(drawn, Scenario):
                    right_training(drawn, data_seed(str(seed), drawn))
