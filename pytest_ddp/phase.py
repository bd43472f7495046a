"""What the controller's pytest and a rank's pytest say to each other: one phase of one test at a time."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from pytest_ddp.bounds import bounded

When: TypeAlias = Literal["setup", "call", "teardown"]
QUIT = b"quit"  # what a rank's debugger answers when the user wants the run to end


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
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, body: bytes) -> "PhaseRequest":
        """Return the request that `encode` made."""
        plain = json.loads(body)
        following = plain["following"]
        return cls(plain["when"], ItemId(**plain["test"]), ItemId(**following) if following else None)


def encode_report(data: dict[str, Any] | None) -> bytes:
    """Return pytest's serialised report as bytes; what is not JSON in it (user properties) travels as text."""
    if data is None:
        return b""
    short = {name: bounded(data[name]) for name in ("longrepr", "sections") if name in data}
    return json.dumps({**data, **short}, default=str).encode()


def decode_report(body: bytes) -> dict[str, Any] | None:
    """Return what `encode_report` was given."""
    data: dict[str, Any] | None = json.loads(body) if body else None
    return data
