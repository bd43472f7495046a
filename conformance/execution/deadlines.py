"""When a run counts as hung: far later than any run takes on this machine."""

import math
from dataclasses import dataclass

from conformance.scenarios.drawn import Drawn

IMPORT_SECONDS = 30  # for the first import, unless `--import-seconds` says otherwise
_RUN_SECONDS = 10.0
_FIRST_RUN_SECONDS = 30.0
_SLOWER = 100.0
_LONGEST_IMPORT = 120.0
_SLOWER_IMPORT = 10.0  # all ranks import the submission at one time, new ones while others compute
_GATED_STEP_SECONDS = 10.0  # `comm_threads` waits for other threads of the submission, in each step


@dataclass
class Deadlines:
    """The deadline of a run, from what earlier runs took.

    Attributes:
        fastest: seconds that the fastest run took so far.
        import_seconds: seconds that the slowest import of the submission took so far.
    """

    fastest: float = math.inf
    import_seconds: float = 0.0

    def of(self, drawn: Drawn) -> float:
        """Return the seconds after which ranks that carry this out count as hung, their import included."""
        run = _FIRST_RUN_SECONDS if math.isinf(self.fastest) else max(_RUN_SECONDS, _SLOWER * self.fastest)
        gated = _GATED_STEP_SECONDS * getattr(drawn, "steps", 0) if drawn.gated else 0.0
        return run + gated + max(2 * self.import_seconds, min(_SLOWER_IMPORT * self.import_seconds, _LONGEST_IMPORT))
