"""Saves what a check failed on, and holds the submission to it again: `pytest-ddp-grade replay FILE`."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from conformance.checks.check import Check
from conformance.components.registry import COMPONENTS
from conformance.execution.deadlines import IMPORT_SECONDS
from conformance.execution.executor import Executor
from conformance.execution.rank_pools import SizedRanks
from conformance.judging.hold import Search
from conformance.judging.run_check import Result, judged
from conformance.scenarios.drawn import Drawn, drawn_from_json
from conformance.submissions.library import Library
from conformance.submissions.location import Location, locate
from pytest_ddp.errors import UsageError

SCHEMA = "pytest-ddp/case/2"
_HERE = "."


@dataclass(frozen=True)
class Replay:
    """A check, and what a submission failed it on. The numbers derive from `secret` and the seed of what was drawn.

    `submission` is the path or the module of the adapters, or the library that failed.
    """

    submission: str | Library
    component: str
    check: Check
    drawn: Drawn
    secret: str

    @classmethod
    def read(cls, path: Path) -> "Replay":
        """Return what `write` wrote.

        Raises:
            UsageError: the file cannot be read, or holds something else.
        """
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            check = next(check for check in COMPONENTS[plain["component"]].checks if check.id == plain["check"])
            drawn = drawn_from_json(plain["scenario"])
            given = plain["submission"]
            submission = given if isinstance(given, str) else Library.from_json(given)
            return cls(submission, plain["component"], check, drawn, plain["secret"])
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, StopIteration):
            raise UsageError(
                f"{path} is no case that this version wrote: give the .json file beside the script of a failure"
            ) from None

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        plain = {
            "schema": SCHEMA,
            "submission": self.submission.to_json() if isinstance(self.submission, Library) else self.submission,
            "component": self.component,
            "check": self.check.id,
            "scenario": self.drawn.to_json(),
            "secret": self.secret,
        }
        path.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")

    @contextmanager
    def located(self) -> Iterator[Location]:
        """Give the place of the adapters: the current folder's, if the case comes from another machine.

        Raises:
            UsageError: there are none.
        """
        if isinstance(self.submission, str):
            moved = Path(self.submission).is_absolute() and not Path(self.submission).exists()
            yield locate(_HERE if moved else self.submission)
            return
        with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
            yield self.submission.write(Path(folder))

    def run(self, ranks: SizedRanks, location: Location, import_seconds: float = IMPORT_SECONDS) -> Result:
        """Hold the submission to the check on this alone; it has so many seconds to import.

        Raises:
            UsageError: the submission does not import.
            HarnessError: ranks could not be had.
        """
        executor = Executor(ranks, location, self.secret, import_seconds)
        found = executor.look([COMPONENTS[self.component].contract])
        if found.error:
            what = f"the adapters of {self.submission}" if isinstance(self.submission, str) else "the library"
            raise UsageError(f"{what} cannot be imported: {found.error}")
        executor.is_implemented(COMPONENTS[self.component])
        return judged(Search(COMPONENTS[self.component], self.check, executor), self.drawn)
