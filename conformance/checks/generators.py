"""The assertion about the global generators of random numbers."""

from collections.abc import Iterator

from conformance.checks.check import Violation
from conformance.checks.trial import CaseTrial, Trial

GENERATORS = {"torch": "torch's", "random": "Python's `random`", "numpy": "NumPy's"}


def global_generators_stay(trial: Trial | CaseTrial) -> None:
    """Hold the global generators to the state that they had before: torch's, Python's and NumPy's."""
    for rank, moved in enumerate(_moved(trial)):
        if moved:
            raise Violation(
                f"On rank {rank}, a global generator of random numbers has another state afterwards: "
                f"{' and '.join(GENERATORS[name] for name in moved)}; expected all of them as they were."
            )


def _moved(trial: Trial | CaseTrial) -> Iterator[list[str]]:
    """Yield the names of the generators that have moved, by rank."""
    if isinstance(trial, Trial):
        yield from (list(seen.generators) for seen in trial.observations)
    else:
        yield from ([name for name in GENERATORS if bool(answer[f"moved/{name}"])] for answer in trial.answers)
