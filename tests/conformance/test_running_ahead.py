"""Ranks are at the next scenario while the judge looks at the last: it changes nothing but the time."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import psutil
import pytest

from conformance.components.registry import COMPONENTS
from conformance.execution.executor import Executor
from conformance.execution.fork_servers import ranks_from
from conformance.execution.outcome import Broken, Observed
from conformance.judging.draws import Draws
from conformance.scenarios.scenario import Scenario
from conformance.strategies import Bounds
from conformance.strategies.wrapper import plain, with_frozen
from conformance.submissions.location import locate

FAILS_ON_THREE = """
    import torch.distributed as dist

    def get_naive_ddp(module):
        return module

    def naive_ddp_on_after_backward(ddp_model, optimizer):
        if dist.get_world_size() == 3:
            raise ValueError("three")
    """
SCENARIOS = [Scenario(world_size=size, seed=seed) for size, seed in ((2, 0), (4, 1), (3, 2), (2, 3))]


@pytest.fixture
def executor(launcher, submit) -> Iterator[Executor]:
    with ranks_from(launcher) as ranks:
        yield Executor(ranks, locate(str(submit(FAILS_ON_THREE))), "7")


def test_each_comes_in_turn_when_it_has_run_and_nothing_runs_beside_one_that_broke(executor):
    seen = []
    for scenario in executor.ahead(COMPONENTS["naive_ddp"], SCENARIOS):
        assert scenario == SCENARIOS[len(seen)]
        assert executor.knows(COMPONENTS["naive_ddp"], scenario)
        seen.append((executor.executions, executor.ranks.counts["served"]))
    assert seen == [
        (1, 2 + 4),  # four ranks are at the second
        (2, 2 + 4 + 3),
        (3, 2 + 4 + 3),  # broken: nobody is at the fourth
        (4, 2 + 4 + 3 + 2),
    ]


def test_what_was_seen_is_what_is_seen_alone(executor):
    for _ in executor.ahead(COMPONENTS["naive_ddp"], SCENARIOS):
        pass
    for scenario in SCENARIOS:
        seen, again = (
            executor.run(COMPONENTS["naive_ddp"], scenario),
            executor.run_again(COMPONENTS["naive_ddp"], scenario),
        )
        if scenario.world_size == 3:
            assert isinstance(seen, Broken)
            assert isinstance(again, Broken)
            assert seen.root.message == again.root.message == "three"
        else:
            assert isinstance(seen, Observed)
            assert isinstance(again, Observed)
            pairs = zip(seen.answers[0], again.answers[0], strict=True)
            assert all(one.losses == other.losses != [] for one, other in pairs)


def test_it_can_be_left_at_any_time(executor):
    with closing(executor.ahead(COMPONENTS["naive_ddp"], SCENARIOS)) as running:
        assert next(running) == SCENARIOS[0]
    assert isinstance(executor.run(COMPONENTS["naive_ddp"], SCENARIOS[3]), Observed)


def test_a_rank_that_died_since_the_last_run_is_replaced(executor):
    assert isinstance(executor.run(COMPONENTS["naive_ddp"], SCENARIOS[0]), Observed)
    doomed = psutil.Process(executor.ranks._pools[2]._processes[1].pid)
    doomed.kill()
    assert isinstance(executor.run(COMPONENTS["naive_ddp"], SCENARIOS[3]), Observed)


def draws(scenarios, *, bucketed: bool) -> Draws:
    (rules_out,) = {check.rules_out for check in COMPONENTS["ddp"].checks if check.id == "gradients_averaged"}
    return Draws(scenarios, rules_out, Bounds(4, bucketed), 3, "3", 10)


@pytest.mark.parametrize("scenarios", [plain, with_frozen])
def test_all_wrappers_are_held_to_the_same_scenarios_but_for_the_size_of_buckets(scenarios):
    with_buckets, without = (draws(scenarios, bucketed=bucketed).all() for bucketed in (True, False))
    assert len({one.bucket_size_mb for one in with_buckets}) > 1
    assert [replace(one, bucket_size_mb=1.0) for one in with_buckets] == list(without)


def test_what_is_held_one_by_one_is_what_is_drawn():
    wanted, held = draws(plain, bucketed=True), []
    wanted.hold(held.append)
    assert tuple(held) == wanted.all()
    assert len(held) == 10
