"""The messages between the controller and a rank host, framed as `protocol.messages` frames those of ranks.

The bytes of a rank's own channel travel inside them, so that one TCP connection serves all ranks of a host.
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

from pytest_ddp.errors import ProtocolError
from pytest_ddp.protocol.messages import frame, from_json


@dataclass(frozen=True)
class Hello:
    """The first message of a host.

    Attributes:
        node: the name of its node, equal for all hosts there.
        process: its number among the processes of the job.
        ranks: the ranks of the job that it starts; none for a process that only waits for the end.
        address: its own address on the interface that reaches the controller.
        environment: the variables of its process; its ranks have them where they differ from the controller's.
    """

    node: str
    process: int
    ranks: tuple[int, ...]
    address: str = ""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Preload:
    """Start the fork server, which imports these modules, unless it runs already."""

    modules: tuple[str, ...]
    device: str = "cpu"


@dataclass(frozen=True)
class Start:
    """Start a rank and call it `process`; ranks with the same `recorder` share a flight recorder."""

    process: int
    rank: int
    recorder: int
    device: str = "cpu"


@dataclass(frozen=True)
class Data:
    """Bytes for the channel of a rank, or from it."""

    process: int
    body: bytes = b""


@dataclass(frozen=True)
class Update:
    """What has changed in a rank's files since the last update, in `body`: see `mirror`."""

    process: int
    output: int = 0
    stacks: int = 0
    left_out: int = 0
    slots: tuple[int, ...] = ()
    body: bytes = b""


@dataclass(frozen=True)
class Closed:
    """The rank's channel has ended, or it could not be started for this reason."""

    process: int
    failed: str = ""


@dataclass(frozen=True)
class Exited:
    """The rank's process has ended; an exit code below 0 is that of a signal, None is unknown."""

    process: int
    exit_code: int | None


@dataclass(frozen=True)
class Kill:
    """End the rank and its process group."""

    process: int


@dataclass(frozen=True)
class Ask:
    """A question, which `Reply` answers: "update" and "stacks" of these ranks, or the "status" of one."""

    number: int
    what: str
    processes: tuple[int, ...]


@dataclass(frozen=True)
class Reply:
    """The answer to a question; a status is [psutil's word, whether it is busy, CPU seconds]."""

    number: int
    value: Any = None


@dataclass(frozen=True)
class Goodbye:
    """End all ranks and leave with this exit code; `reason` says in words what the run has come to."""

    exit_code: int
    reason: str = ""


HostMessage: TypeAlias = Hello | Preload | Start | Data | Update | Closed | Exited | Kill | Ask | Reply | Goodbye
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(HostMessage)}
_TUPLES = ("ranks", "modules", "slots", "processes")


def encode(message: HostMessage) -> bytes:
    """Return the message as bytes."""
    return frame(message)


def decode(head: bytes, body: bytes) -> HostMessage:
    """Return the message that `encode` made; raise ProtocolError for anything else."""
    try:
        name, plain = from_json(head.decode())
        kind = _KINDS[name]
        plain |= {key: tuple(plain[key]) for key in _TUPLES if key in plain}
        message: HostMessage = kind(**plain, body=body) if hasattr(kind, "body") else kind(**plain)
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"not a message of a rank host: {head[:200]!r} ({error})") from error
    return message
