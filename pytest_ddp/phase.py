"""What the controller's pytest and a rank's pytest say to each other: one phase of one test at a time."""

from dataclasses import asdict, dataclass

# By their own names: a test that replaces `json.dumps` and forgets must not break its rank.
from json import dumps, loads
from typing import Any, Literal, TypeAlias

When: TypeAlias = Literal["setup", "call", "teardown"]


@dataclass(frozen=True)
class ItemId:
    """A test: the file to collect, and the node id in it."""

    path: str
    nodeid: str


@dataclass(frozen=True)
class PhaseRequest:
    """Run one phase of `test`; at teardown `following` is the test that comes next, None for the last."""

    when: When
    test: ItemId
    following: ItemId | None = None

    def encode(self) -> bytes:
        """Return the request as bytes."""
        return dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, body: bytes) -> "PhaseRequest":
        """Return the request that `encode` made."""
        plain = loads(body)
        following = plain["following"]
        return cls(plain["when"], ItemId(**plain["test"]), ItemId(**following) if following else None)


def encode_report(data: dict[str, Any] | None) -> bytes:
    """Return pytest's serialised report as bytes; what is not JSON in it (user properties) travels as text."""
    return b"" if data is None else dumps(data, default=str).encode()


def decode_report(body: bytes) -> dict[str, Any] | None:
    """Return what `encode_report` was given."""
    data: dict[str, Any] | None = loads(body) if body else None
    return data
