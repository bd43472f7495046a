"""What simulated ranks answer that have run a scenario in every order; with both directions of its trip."""

from dataclasses import asdict, dataclass
from json import dumps, loads  # by name: a submission may replace `json.dumps`
from typing import Self

from conformance.protocol.codec import MalformedError


@dataclass(frozen=True)
class Explored:
    """What came of the orders in which ranks run and results arrive.

    Attributes:
        runs: how many runs that took.
        orders: how many of them a rank can tell from the others.
        operations: how many operations the ranks make together; 0 unless all orders were run.
        finished: whether all orders were run, and none failed or gave other bits.
        found: the schedule of the first that failed or gave other bits; None if none did.
    """

    runs: int
    orders: int
    operations: int = 0
    finished: bool = False
    found: tuple[int, ...] | None = None

    def encode(self) -> bytes:
        """Return it as bytes."""
        return dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return what `encode` made.

        Raises:
            MalformedError: the bytes are something else.
        """
        try:
            match loads(data):
                case {
                    "runs": int() as runs,
                    "orders": int() as orders,
                    "operations": int() as operations,
                    "finished": bool() as finished,
                    "found": list() | None as found,
                } if all(isinstance(choice, int) and choice >= 0 for choice in found or ()):
                    return cls(runs, orders, operations, finished, None if found is None else tuple(found))
        except ValueError:
            pass
        raise MalformedError("not what ranks of ours found in all orders")
