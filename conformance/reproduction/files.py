"""Writes a script and a file to replay for each failure, and removes those that an earlier grade has left."""

import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from conformance.checks.check import Theme
from conformance.checks.trial import Trial
from conformance.components.component import Component
from conformance.execution.executor import Executor
from conformance.execution.outcome import Execution, Malformed, Observed
from conformance.judging.run_check import Result
from conformance.protocol.messages import Observation
from conformance.reproduction import script, training_script
from conformance.reproduction.replay import SCHEMA, Replay
from conformance.scenarios.drawn import Drawn
from conformance.scenarios.scenario import Scenario
from conformance.submissions.library import Library
from conformance.submissions.location import Location

_IN_THE_NUMBERS = ("seed", "sizes", "samples")  # fields of cases that the numbers alone depend on
_NOT_COMPARED: frozenset[Theme] = frozenset({"waiting", "communication", "memory and state", "robustness"})

_NOT_ALWAYS = {
    "sometimes": "it fails only sometimes",
    "hash_apart": "it fails only where ranks have different hash seeds",
}


class UnwritableError(Exception):
    """A folder for scripts cannot be written to; the message says why."""


def write(
    component: Component, result: Result, executor: Executor, folder: Path, library: Library | None = None
) -> Path:
    """Write how to see a failure again; return the path of the script.

    Args:
        component: what failed.
        result: how it failed.
        executor: has run it.
        folder: for files of this library, or for subfolders of all submissions.
        library: what the functions are imported from, if they are no adapters of a submission.

    Raises:
        UnwritableError: the folder cannot be written to.
    """
    drawn, location = result.scenario, executor.location
    if drawn is None:
        raise ValueError(f"{result.check.id} has not failed on anything")
    message = f"{result.message} {result.diagnosis}"
    component = replace(component, contract=executor.contract(component))
    failure = script.Failure(source=library or location, component=component, check=result.check, message=message)
    place, text = folder if library else folder / location.subfolder, _text(failure, result, executor, drawn)
    submission = library or location.file or location.module
    replay = Replay(submission, component.name, result.check, drawn, executor.secret)
    path = place / f"{failure.name}.py"
    try:
        place.mkdir(parents=True, exist_ok=True)
        replay.write(place / f"{failure.name}.json")
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UnwritableError(f"{error.filename or place}: {error.strerror}") from None
    return path


def remove(component: str, check: str, folder: Path) -> None:
    """Remove what an earlier run has left of one check of a library."""
    for suffix in (".py", ".json"):
        (folder / f"{script.name_of_files(component, check)}{suffix}").unlink(missing_ok=True)


def remove_stale(location: Location, components: Collection[str], folder: Path) -> None:
    """Remove what an earlier grade of these components of the submission has left below a folder; nobody else's files.

    Folders that are empty then go as well.
    """
    place = folder / location.subfolder
    stale = [path for path in place.glob("*-*.*") if path.is_file() and _is_ours(path, components)]
    for path in stale:
        path.unlink()
    if stale:
        with suppress(OSError):  # where something is left
            for emptied in (place, *place.parents[: len(location.subfolder.parts)]):
                emptied.rmdir()


def _is_ours(path: Path, components: Collection[str]) -> bool:
    if not any(path.name.startswith(f"{component}-") for component in components):
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".py":
        return text.startswith(f'"""{script.MARKER} ')
    try:
        return path.suffix == ".json" and bool(json.loads(text)["schema"] == SCHEMA)
    except (ValueError, KeyError, TypeError):
        return False


def flat_text(failure: script.Failure, drawn: Drawn, seed: int) -> tuple[str, str]:
    """Return a flat script of what was drawn, and why it is of no use; empty if it is.

    Args:
        failure: what it has to show.
        drawn: the scenario or the case that failed.
        seed: the integer that its numbers are drawn from.
    """
    if isinstance(drawn, Scenario):
        text, unshown = training_script.flat_text(failure, drawn, seed)
    else:
        text, unshown = _flat_case(failure, drawn, seed)
    if unshown:
        return text, f"a short script has no lines for {', '.join(unshown)}"
    lines = script.lines_besides_data(text)
    return text, f"a short script would have {lines} lines" if lines > script.MOST_LINES else ""


def _flat_case(failure: script.Failure, case: Drawn, seed: int) -> tuple[str, list[str]]:
    """Return a flat script that asks a component what a training loop would, and what it does not show of the case."""
    if not failure.own_template:
        return "", ["what this component does"]
    given = max(failure.component.numbers(case, seed), key=len)  # a rank is given the same in each world
    if not script.is_readable(given):
        return "", ["so many numbers"]
    read, data = script.Reading(case), list(script.data_lines("GIVEN", given))
    text = failure.render(failure.own_template, s=read, world_size=read.world_size, data=data)
    return text, read.unread(*_IN_THE_NUMBERS)


def _text(failure: script.Failure, result: Result, executor: Executor, drawn: Drawn) -> str:
    """Return the flat script of a failure where there is one that shows it, else one that replays it."""
    if executor.stubbed:
        text, why = "", f"stand-ins are needed for what is absent: {', '.join(sorted(executor.stubbed))}"
    elif result.when in _NOT_ALWAYS:
        text, why = "", _NOT_ALWAYS[result.when]
    elif failure.component.answer is not Observation and result.check.theme in _NOT_COMPARED:
        text, why = "", f"a short script compares results, and this failure is about {result.check.theme}"
    else:
        text, why = flat_text(failure, drawn, executor.seed(drawn))
    if not why and not _is_shown(failure.component, executor.run(failure.component, drawn), drawn):
        why = "no gradient and no parameter is wrong"
    return failure.render("replay.py.jinja", why=why, json=f"{failure.name}.json") if why else text


def _is_shown(component: Component, execution: Execution, drawn: Drawn) -> bool:
    """Whether a flat script that does what ranks did ends otherwise than one with a right submission."""
    if not isinstance(execution, Observed):
        return not isinstance(execution, Malformed)
    trial = component.trial(drawn, execution)
    return not isinstance(trial, Trial) or training_script.shows(trial, component.contract.kind)
