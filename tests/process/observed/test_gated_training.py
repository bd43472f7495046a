"""A training under a gate gives results that are equal to the last bit."""

import functools
import pickle

import gated_ddp
import observed_operations
import observed_training
import pytest

from pytest_ddp.observed import HoldUntilBackward, InOrder, Overlap, Shuffled
from pytest_ddp.outcomes.failure import RankFailure, failures
from pytest_ddp.planning.world import World

OBSERVED = World(2, observe=True)
HOLD = repr(HoldUntilBackward())
SCHEDULES = [HOLD, repr(InOrder((3, 1, 2))), repr(Shuffled(1))]
BLOCK_BY_DESIGN = [("fsdp2", HOLD)]  # it gathers a layer's parameters inside backward
NEVER_AWAITED = ["ddp_join"]  # torch's Join never waits for its own all_reduce


@pytest.fixture(scope="module")
def run(ranks):
    @functools.cache
    def run(world: World, target: str, body: bytes):
        outcomes = ranks.run(world, target, body, timeout=120)
        assert not failures(outcomes), str(RankFailure(outcomes, world))
        return [pickle.loads(outcome.body) for outcome in outcomes]  # noqa: S301  from our own targets

    return run


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", observed_operations.OPERATIONS)
def test_operations_give_equal_results(run, name, schedule):
    plain = run(World(2), "observed_operations:run_all", b"")
    for rank, found in enumerate(run(OBSERVED, "gated:operations", schedule.encode())):
        result, unawaited = found[name]
        if name == "autograd_of_functional_collectives" and "Hold" in schedule:
            assert result.startswith(
                "BlocksInsideBackward: blocks inside backward at tests/on_ranks/observed_operations"
            )
        else:
            assert result == plain[rank][name][0]
            assert not unawaited


@pytest.mark.parametrize(
    ("name", "schedule"),
    [(n, s) for n in observed_training.PROGRAMS for s in SCHEDULES if (n, s) not in BLOCK_BY_DESIGN],
)
def test_trainings_give_equal_results(run, name, schedule):
    plain = run(World(2), "observed_training:run", name.encode())
    for rank, (result, _, unawaited) in enumerate(run(OBSERVED, "gated:training", pickle.dumps((name, schedule)))):
        assert result == plain[rank][0]
        assert bool(unawaited) is (name in NEVER_AWAITED)


@pytest.mark.parametrize(("name", "schedule"), BLOCK_BY_DESIGN)
def test_trainings_that_block_by_design_raise(ranks, name, schedule):
    outcomes = ranks.run(OBSERVED, "gated:training", pickle.dumps((name, schedule)), timeout=120)
    assert [getattr(outcome, "kind", outcome) for outcome in outcomes] == ["BlocksInsideBackward"] * 2


def test_fsdp2_blocks_inside_backward_where_it_gathers(run):
    for _, verdicts, _ in run(OBSERVED, "gated:training", pickle.dumps(("fsdp2", SCHEDULES[1]))):
        assert {verdict.verdict for verdict in verdicts} == {Overlap.BLOCKS_INSIDE_BACKWARD}
        assert verdicts[0].entry.op == "all_gather_into_tensor"


@pytest.mark.parametrize(
    ("bucket_mb", "schedule"),
    [
        pytest.param(0.001, HOLD, id="1KB"),
        pytest.param(gated_ddp.DEFAULT, HOLD, id="default"),
        pytest.param(25, HOLD, id="25MB"),
        pytest.param(0.001, repr(Shuffled(1)), id="1KB-shuffled"),
    ],
)
@pytest.mark.parametrize("option", gated_ddp.OPTIONS)
def test_torch_ddp_overlaps_and_gives_equal_results(run, option, bucket_mb, schedule):
    """A single bucket of 25 MB cannot overlap, because the last gradient completes it."""
    plain = run(World(2), "gated_ddp:train", pickle.dumps((option, bucket_mb, "")))
    for rank, (numbers, verdicts, unawaited) in enumerate(
        run(OBSERVED, "gated_ddp:train", pickle.dumps((option, bucket_mb, schedule)))
    ):
        assert numbers == plain[rank][0]
        assert not unawaited
        found = [verdict.verdict for verdict in verdicts]
        assert found[-1] is (Overlap.END_OF_BACKWARD if bucket_mb == 25 else Overlap.OVERLAPPED)
        assert set(found) <= {Overlap.END_OF_BACKWARD, Overlap.OVERLAPPED}
