"""When a run counts as hung: far later than any run takes on this machine."""

import math
from dataclasses import dataclass

from conformance.scenarios.drawn import Drawn
from conformance.scenarios.scenario import Scenario

IMPORT_SECONDS = 30  # for the first import, unless `--import-seconds` says otherwise
_RUN_SECONDS = 10.0
_FIRST_RUN_SECONDS = 30.0
_SLOWER = 100.0
_LONGEST_RUN = 60.0
_LONGEST_IMPORT = 60.0
_SLOWER_AT_LEAST = 10.0
_LONGEST_OF_ALL = 300.0  # however slow the fastest run was
_SLOWER_IMPORT = 10.0  # all ranks import the submission at one time, new ones while others compute
_RANKS_AT_ONCE = 4  # of real ranks, about: simulated ones run one after another
_GATED_STEP_SECONDS = 10.0  # `comm_threads` waits for other threads of the submission, in each step


@dataclass
class Deadlines:
    """The deadline of a run, from what earlier runs took."""

    fastest: float = math.inf  # seconds of the fastest run so far
    import_seconds: float = 0.0  # seconds of the slowest import of the submission so far

    def of(self, drawn: Drawn) -> float:
        """Return the seconds after which ranks that carry this out count as hung, their import included."""
        gated = _GATED_STEP_SECONDS * getattr(drawn, "steps", 0) if drawn.gated else 0.0
        importing = max(2 * self.import_seconds, min(_SLOWER_IMPORT * self.import_seconds, _LONGEST_IMPORT))
        return self._run_seconds * _turns(drawn) + gated + importing

    @property
    def _run_seconds(self) -> float:
        """What a run may take without its import: on a busy machine much, but not so much that a hang takes minutes."""
        if math.isinf(self.fastest):
            return _FIRST_RUN_SECONDS
        bounded = min(_SLOWER * self.fastest, _LONGEST_RUN)
        return max(_RUN_SECONDS, bounded, min(_SLOWER_AT_LEAST * self.fastest, _LONGEST_OF_ALL))


def _turns(drawn: Drawn) -> float:
    """Return how much longer a run takes because its ranks are many and run one after another."""
    if not (isinstance(drawn, Scenario) and drawn.simulated):
        return 1.0
    return max(1.0, drawn.world_size / _RANKS_AT_ONCE)
