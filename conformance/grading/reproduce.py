"""Writes the files with which a failure can be seen again: a script, and a case for `replay`."""

from pathlib import Path
from typing import Any

from conformance.execution.executor import Executor
from conformance.judging.run_check import Result
from conformance.reproduction.case_script import PartReproduction
from conformance.reproduction.replay import Replay
from conformance.reproduction.training_script import Reproduction
from conformance.scenarios.drawn import Drawn
from conformance.scenarios.scenario import Scenario


def write_reproduction(component: str, result: Result, scenario: Drawn, executor: Executor, folder: Path) -> Path:
    """Write the script and the case of a failure below a folder; return the path of the script."""
    Replay.of(executor, component, result.check, scenario).write(folder, executor.location)
    about: dict[str, Any] = {
        "location": executor.location,
        "component": component,
        "check": result.check,
        "seed": executor.seed(scenario),
        "message": f"{result.message}\n\n{result.diagnosis}".rstrip(),
        "stubbed": frozenset(executor.stubbed),
        "hash_apart": result.hash_apart,
    }
    if isinstance(scenario, Scenario):
        return Reproduction(scenario=scenario, **about).write(folder)
    return PartReproduction(case=scenario, **about).write(folder)
