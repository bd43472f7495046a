"""What the controller's pytest and a rank's pytest send each other: session starts, phases of tests, examples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

# By name: a test that replaces `json.dumps` or `pickle.loads` must not break its rank.
from json import dumps, loads
from pickle import dumps as to_pickle
from pickle import loads as from_pickle
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from pytest_ddp.settings import Settings

When: TypeAlias = Literal["setup", "call", "teardown"]
EXIT_KIND = "pytest.exit"  # the kind of failure by which a rank asks for the end of the run
QUIT = b"quit"  # what a rank's debugger answers when the user wants the run to end


class _FromController:
    """What the controller sends; it travels pickled, because ranks trust the controller."""

    def encode(self) -> bytes:
        """Return the message as bytes."""
        return to_pickle(self)

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Return the message that `encode` made."""
        message: Self = from_pickle(body)  # noqa: S301  made by the controller
        return message


@dataclass(frozen=True)
class SessionStart(_FromController):
    """What a rank needs to start a pytest session like the controller's.

    Attributes:
        args: command-line arguments.
        options: parsed options, by name.
        cwd: the directory in which the controller was started.
        basetemp: the controller's base folder for `tmp_path`.
        terminal: the name of the terminal for a debugger; None without one.
        workerinput: what a plugin finds on an xdist worker.
        markers: the registered markers, one line each.
        coverage: the configuration of coverage; None if it does not measure.
    """

    args: list[str]
    options: dict[str, Any]
    cwd: str
    basetemp: str
    terminal: str | None
    workerinput: dict[str, Any]
    settings: Settings
    markers: list[str]
    coverage: str | None


@dataclass(frozen=True)
class ItemId:
    """A test: the file to collect, and the node id in that file."""

    path: str
    nodeid: str


@dataclass(frozen=True)
class RunTest(_FromController):
    """Set `test` up, answer, and wait for `Proceed`. The ranks share the folder `shared_path`, which need not exist."""

    test: ItemId
    shared_path: str = ""


@dataclass(frozen=True)
class Proceed(_FromController):
    """Run the next phase of the test at hand: every rank has finished the phase before it.

    Attributes:
        phase: "call" or "teardown".
        next_test: for teardown, the test that runs next on these ranks and keeps the fixtures of wider scope that it
            shares with this one; None ends all fixtures.
        schedule: for the call on simulated ranks, the choices of the schedule.
        faults: for the call on simulated ranks, what happens to their operations.
    """

    phase: Literal["call", "teardown"]
    next_test: ItemId | None = None
    schedule: tuple[int, ...] = ()
    faults: tuple[Any, ...] = ()


class RankWarning(NamedTuple):
    """A warning that was issued on a rank, as plain data."""

    message: str
    category: str
    filename: str
    lineno: int
    nodeid: str
    location: tuple[str, int, str] | None


@dataclass(frozen=True)
class PhaseAnswer:
    """What pytest on a rank reports of one phase.

    Attributes:
        report: pytest's report, serialised; None if there is none, or if `passed` says everything.
        passed: seconds of a phase that passed with nothing to report but `sections`; None for any other phase.
        sections: the output and logs that pytest captured on the rank in this test, as (title, text).
        subtests: the reports of subtests, serialised, in order.
        warnings: the warnings of the test; sent with teardown.
        suite_properties: names and values that the test recorded for the whole run; sent with teardown.
        retire: what the test left behind and the rank could not put back; this process must not run another test.
    """

    report: dict[str, Any] | None = None
    passed: float | None = None
    sections: tuple[tuple[str, str], ...] = ()
    subtests: tuple[dict[str, Any], ...] = ()
    warnings: tuple[RankWarning, ...] = ()
    suite_properties: tuple[tuple[str, str], ...] = ()
    retire: str = ""

    def encode(self) -> bytes:
        """Return the answer as bytes; values in reports that JSON cannot hold (user properties) become text."""
        changed = {name: value for name, value in vars(self).items() if value != getattr(PhaseAnswer, name)}
        return dumps(changed, default=str).encode()

    @classmethod
    def decode(cls, body: bytes) -> "PhaseAnswer":
        """Return the answer that `encode` made; an empty answer for no bytes."""
        plain = loads(body) if body else {}
        for name, make in _ITEMS.items():
            if name in plain:
                plain[name] = tuple(map(make, plain[name]))
        return cls(**plain)


def _warning(plain: list[Any]) -> RankWarning:
    *texts, location = plain
    return RankWarning._make([*texts, tuple(location) if location else None])


_ITEMS: dict[str, Callable[[Any], object]] = {
    "sections": tuple,
    "subtests": dict,
    "warnings": _warning,
    "suite_properties": tuple,
}


@dataclass(frozen=True)
class ExampleReport:
    """One rank's report of an example.

    Attributes:
        phase: pytest's report of the call, as `PhaseAnswer` encodes it.
        rejected: why `assume` or `reject` rejected the example; None if they did not.
        origin: exception type and place of a failure and of its causes: Hypothesis tells failures apart by them.
        kind: "module:name" of the exception's type.
        notes: the texts that the test passed to `note`.
        events: what the test passed to `event`, with payloads.
        targets: what the test passed to `target`, by label.
    """

    phase: bytes = b""
    rejected: str | None = None
    origin: str = ""
    kind: str = ""
    notes: Sequence[str] = ()
    events: Mapping[str, str | float] = field(default_factory=dict)
    targets: Mapping[str, float] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the report as bytes: a line of JSON, then `phase` unchanged."""
        return dumps({**vars(self), "phase": None}).encode() + b"\n" + self.phase

    @classmethod
    def decode(cls, body: bytes) -> "ExampleReport":
        """Return the report that `encode` made; an empty report for no bytes."""
        line, _, phase = body.partition(b"\n")
        plain: dict[str, Any] = loads(line) if line else {}
        return cls(**plain | {"phase": phase})
