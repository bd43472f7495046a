"""What the fixture `ddp_ranks` hands out."""

from collections.abc import Callable
from functools import partial
from typing import cast

import pytest

from pytest_ddp.controller.session import PLUGIN, Controller
from pytest_ddp.errors import UsageError
from pytest_ddp.planning.plan import Refuse, Skip
from pytest_ddp.planning.request import Request
from pytest_ddp.pool.pool import RankPool
from pytest_ddp.remote_calls.calls import RankCaller


def rank_callers(config: pytest.Config) -> Callable[..., RankCaller]:
    """Return a function that takes what `@distributed` takes, of worlds one, and gives ranks of that world.

    A plain test runs once: where the settings name several world sizes, the largest is the default.
    """
    controller = cast("Controller", config.pluginmanager.get_plugin(PLUGIN))

    def ranks(
        world_size: int | None = None,
        *,
        backend: str | None = None,
        device: str | None = None,
        timeout: float | None = None,
        observe: bool | None = None,
    ) -> RankCaller:
        size = max(controller.planner.settings.world_size) if world_size is None else world_size
        if not isinstance(size, int):
            raise UsageError(f"ddp_ranks(world_size=...) takes one number of ranks; got {size!r}: call it for each")
        request = Request.of(size, backend=backend, device=device, timeout=timeout, observe=observe)
        decision = controller.planner.plan_request(request)
        if isinstance(decision, Skip):
            pytest.skip(decision.reason)
        if isinstance(decision, Refuse):
            raise UsageError(decision.reason)
        world = decision.world

        def warm() -> RankPool:
            controller.scopes.release()
            return controller.pools.of(world.device)

        return RankCaller(warm, partial(controller.pools.lease, world), world, decision.timeout)

    return ranks
