"""What the base branch forgives: flaky tests, until a day, and skips that a machine with few GPUs must have."""

import datetime as dt
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddp.errors import UsageError
from pytest_ddp.gpu_gate.junit import Case


@dataclass(frozen=True)
class Flaky:
    """A test whose failure does not fail the gate, up to the day `expires`; `owner` repairs it."""

    test: str
    owner: str
    reason: str
    expires: dt.date

    def __str__(self) -> str:
        return f"[[flaky]] {self.test}"


@dataclass(frozen=True)
class ExpectedSkip:
    """A test that is skipped, with this text in its reason, where there are fewer GPUs than `below_gpus`."""

    test: str
    reason: str
    below_gpus: int

    def __str__(self) -> str:
        return f"[[skip]] {self.test}"


@dataclass(frozen=True)
class Policy:
    """The entries that count on a machine with `gpus` GPUs."""

    flaky: tuple[Flaky, ...] = ()
    skips: tuple[ExpectedSkip, ...] = ()
    gpus: int = 1

    @classmethod
    def read(cls, path: Path | None, gpus: int) -> "Policy":
        """Read the file; raise UsageError if an entry lacks something, or has something unknown."""
        if path is None:
            return cls(gpus=gpus)
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
            kinds: dict[str, Any] = {"flaky": Flaky, "skip": ExpectedSkip}
            if unknown := sorted(tables.keys() - kinds.keys()):
                raise UsageError(f"{path}: the tables are [[flaky]] and [[skip]]; got {', '.join(unknown)}")
            made = {
                name: tuple(_entry(name, kind, each) for each in tables.get(name, ())) for name, kind in kinds.items()
            }
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"{path}: {error}") from None
        return cls(made["flaky"], tuple(skip for skip in made["skip"] if gpus < skip.below_gpus), gpus)

    def quarantine(self, case: Case) -> Flaky | None:
        """Return the entry that forgives the failure of a test."""
        return next((entry for entry in self.flaky if covers(entry.test, case.test)), None)

    def expects_skip(self, case: Case) -> bool:
        """Whether a test is skipped as expected."""
        return any(covers(entry.test, case.test) and entry.reason in case.message for entry in self.skips)

    def complaints(self, cases: Sequence[Case], today: dt.date) -> Iterator[str]:
        """Yield a sentence for each entry that has expired or that fits no test of the run."""
        for flaky in self.flaky:
            if flaky.expires < today:
                yield f"{flaky} expired on {flaky.expires}: {flaky.owner} repairs or removes the test ({flaky.reason})"
        entries: tuple[Flaky | ExpectedSkip, ...] = (*self.flaky, *self.skips)
        for entry in entries:
            if not any(covers(entry.test, case.test) for case in cases):
                yield f"{entry} fits no test of this run: remove the entry, or correct its id"


def covers(entry: str, test: str) -> bool:
    """Whether an entry names this test, a function with its parameters, or the class or file around it."""
    return test == entry or test.startswith((f"{entry}[", f"{entry}::"))


_TYPES: Mapping[str, type] = {"expires": dt.date, "below_gpus": int}


def _entry(table: str, kind: Any, values: Mapping[str, Any]) -> Any:
    fields = kind.__dataclass_fields__.keys()
    if fields != values.keys():
        raise ValueError(f"[[{table}]] has the keys {', '.join(fields)}; got {', '.join(values)}")
    for name, value in values.items():
        expected = _TYPES.get(name, str)
        if type(value) is not expected or not value:
            raise ValueError(f"[[{table}]] {name} is a {expected.__name__}; got {value!r}")
    return kind(**values)
