"""What the controller's pytest and a rank's pytest say to each other: one phase of one test at a time."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache

# By their own names: a test that replaces `json.dumps` and forgets must not break its rank.
from json import dumps, loads
from typing import Any, Literal, TypeAlias

When: TypeAlias = Literal["setup", "call", "teardown"]
EXIT_KIND = "pytest.exit"  # the kind of failure by which a rank asks for the end of the run
QUIT = b"quit"  # what a rank's debugger answers when the user wants the run to end


@dataclass(frozen=True)
class ItemId:
    """A test: the file to collect, and the node id in it."""

    path: str
    nodeid: str


@dataclass(frozen=True)
class PhaseRequest:
    """Run one phase of `test`.

    Attributes:
        when: the phase.
        test: the test.
        following: for teardown, the test that comes next and keeps the fixtures that it shares; None ends them all.
        shared_path: a folder for all ranks of the test; it need not exist yet.
        with_call: after a setup that passes, run the call too, and answer for both at once.
        with_teardown: after a call that passes, go on to teardown at once if nothing speaks against it.
    """

    when: When
    test: ItemId
    following: ItemId | None = None
    shared_path: str = ""
    with_call: bool = False
    with_teardown: bool = False

    def encode(self) -> bytes:
        """Return the request as bytes."""
        return dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, body: bytes) -> "PhaseRequest":
        """Return the request that `encode` made."""
        plain = loads(body)
        following = plain["following"]
        return cls(
            plain["when"],
            ItemId(**plain["test"]),
            ItemId(**following) if following else None,
            plain["shared_path"],
            plain["with_call"],
            plain["with_teardown"],
        )


@dataclass(frozen=True)
class RankWarning:
    """A warning that was given on a rank, as far as it can travel."""

    message: str
    category: str
    filename: str
    lineno: int
    when: str
    nodeid: str
    location: tuple[str, int, str] | None


@dataclass(frozen=True)
class PhaseAnswer:
    """What a rank's pytest made of a phase.

    Attributes:
        report: pytest's report, serialised; None if there is none, or `passed` says all.
        passed: the seconds of a phase that passed and has nothing to tell but `sections`; None for any other.
        sections: what pytest has caught on the rank in this test, as (title, text).
        setup: the answer for setup, encoded, where this is that of a call which followed it at once.
        goes_on: whether the rank goes on to teardown at once, and answers for it next.
        subtests: the reports of subtests, serialised, in order.
        warnings: the warnings of the test, with its last phase.
        suite_properties: names and values of what it recorded of the whole run, with its last phase.
        retire: what the test left behind and cannot be put back, so that this process must not run another test.
    """

    report: dict[str, Any] | None = None
    passed: float | None = None
    sections: tuple[tuple[str, str], ...] = ()
    subtests: tuple[dict[str, Any], ...] = ()
    warnings: tuple[RankWarning, ...] = ()
    suite_properties: tuple[tuple[str, str], ...] = ()
    retire: str = ""
    setup: str | None = None
    goes_on: bool = False

    def encode(self) -> bytes:
        """Return the answer as bytes; what is not JSON in reports (user properties) travels as text."""
        told = {name: value for name, value in vars(self).items() if value != getattr(PhaseAnswer, name)}
        return dumps(told, default=_as_plain).encode()

    @classmethod
    @lru_cache(maxsize=256)  # whoever looks at a phase's outcomes asks anew
    def decode(cls, body: bytes) -> "PhaseAnswer":
        """Return the answer that `encode` made; an empty one for no bytes."""
        told = loads(body) if body else {}
        for name, of_one in _PARTS.items():
            if name in told:
                told[name] = tuple(map(of_one, told[name]))
        return cls(**told)


def _as_plain(value: object) -> object:
    return vars(value) if isinstance(value, RankWarning) else str(value)


def _warning(plain: dict[str, Any]) -> RankWarning:
    location = plain["location"]
    return RankWarning(**{**plain, "location": tuple(location) if location else None})


_PARTS: dict[str, Callable[[Any], object]] = {
    "sections": tuple,
    "subtests": dict,
    "warnings": _warning,
    "suite_properties": tuple,
}
