"""Assertions about the number of collectives in a step. The last step is judged: communication has settled by then."""

from collections.abc import Iterator

from conformance.checks.check import Violation
from conformance.checks.traffic import exchanges, expected_exchanges, gradient_sizes, last_step, of_the_model
from conformance.checks.training import training_equals_one_process, trains
from conformance.checks.trial import Trial
from conformance.checks.words import listed
from conformance.scenarios.scenario import MIB


def one_collective_per_dtype(trial: Trial) -> None:
    """Hold the exchanges to one for each dtype of the parameters, or one for all."""
    dtypes = len(set(trial.scenario.model.dtypes.values()))
    for where, count in _counts(trial):
        if not 1 <= count <= dtypes:
            several = f"{dtypes} dtypes" if dtypes > 1 else "one dtype"
            raise Violation(
                f"{where}, {_times(count)} for {len(trial.scenario.model.trainable)} parameters of {several}; expected "
                f"{'one' if dtypes == 1 else f'at most {dtypes}'}, on a flat tensor of all of a dtype.",
                "Group the parameters by dtype, concatenate the gradients of each group, reduce once, and copy the "
                "parts back.",
            )


def one_collective_per_parameter(trial: Trial) -> None:
    """Hold the exchanges to one for each parameter, or more."""
    parameters = len(trial.scenario.model.trainable)
    for where, count in _counts(trial):
        if count < parameters:
            raise Violation(
                f"{where}, {_times(count)} for {parameters} parameters; expected one each.",
                "Launch an all-reduce for each parameter, from its own hook. Gradients that wait for others to travel "
                "together make a bucketed DDP.",
            )


def bucket_size_respected(trial: Trial) -> None:
    """Hold the exchanges to as many as buckets of `bucket_size_mb` allow."""
    sizes, size = gradient_sizes(trial.scenario), trial.scenario.bucket_size_mb
    fewest, most = expected_exchanges(trial.scenario)
    asked = "None" if size is None else f"{size:.3g} ({size * MIB:.0f} bytes)"
    for where, count in _counts(trial):
        if not fewest <= count <= most:
            raise Violation(
                f"{where} with bucket_size_mb={asked} and parameters of {', '.join(map(str, sizes))} bytes, "
                f"{_times(count)}; expected {most if fewest == most else f'{fewest} to {most}'}.",
                "A bucket is full when the next gradient would take it over bucket_size_mb * 1024 * 1024 bytes; count "
                "`p.numel() * p.element_size()`, and start the next bucket from zero.",
            )


def unbounded_bucket(trial: Trial) -> None:
    """Hold the exchanges to one, and training to one process."""
    bucket_size_respected(trial)
    training_equals_one_process(trial)


def freezing(trial: Trial) -> None:
    """Hold training to one process where parameters are frozen later, and a step that trains none to silence."""
    last = trial.scenario.steps - 1
    for rank, seen in enumerate(trial.observations):
        sent = [one.op for one in seen.happenings[last] if of_the_model(one, trial.scenario)]
        if sent and not trial.scenario.trains(last):
            raise Violation(
                f"On rank {rank} at {last_step(trial.scenario)}, every parameter is frozen, "
                f"and still there was something to send: {listed(sent)}.",
                "Only what has a gradient needs to be sent; where nothing has one, do nothing.",
            )
    trains(trial)


def _counts(trial: Trial) -> Iterator[tuple[str, int]]:
    """Yield words for each rank in the last step, and how many times it exchanged gradients; raise if it never did."""
    for rank, seen in enumerate(trial.observations):
        where, count = f"On rank {rank} at {last_step(trial.scenario)}", exchanges(seen.happenings[-1], trial.scenario)
        if not count and trial.scenario.model.trainable:
            raise Violation(f"{where}, no gradient was communicated at all.", "Launch a collective in every step.")
        yield where, count


def _times(count: int) -> str:
    return "one collective was launched" if count == 1 else f"{count} collectives were launched"
