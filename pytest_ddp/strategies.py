"""Strategies of Hypothesis for tests on simulated ranks; imports no torch.

from pytest_ddp.strategies import schedules

@distributed(world_size=4, backend="sim", schedule=schedules())
def test_any_order(ddp): ...
"""

from hypothesis import strategies as st

from pytest_ddp.fault_strategies import corruptions, crashes, delays, partitions, plans
from pytest_ddp.schedule_text import format_schedule

__all__ = ["Choices", "corruptions", "crashes", "delays", "partitions", "plans", "schedules"]

_NEAR, _FAR = (12, 3), (400, 64)  # decisions that follow the default, and the largest option


class Choices(tuple[int, ...]):
    """The choices of a schedule; shown as `schedule=` and `--ddp-schedule` accept them."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(format_schedule(self))


def schedules(max_deviations: int = 20) -> st.SearchStrategy[Choices]:
    """Draw the choices of a schedule: which rank runs next, and which results land early.

    A schedule differs from the default one in at most `max_deviations` decisions. It shrinks to fewer of them.
    """
    deviations = (st.tuples(st.integers(0, gap), st.integers(1, option)) for gap, option in (_NEAR, _FAR))
    return st.lists(st.one_of(*deviations), max_size=max_deviations).map(_choices)


def _choices(deviations: list[tuple[int, int]]) -> Choices:
    """Return the choices that follow the default for `gap` decisions, and then take `option`, for each pair of both."""
    return Choices(choice for gap, option in deviations for choice in (*[0] * gap, option))
