"""The pool of warm ranks, while no rank fails."""

import os
import resource
import threading
from contextlib import ExitStack, nullcontext

import psutil
import pytest
import rank_targets

from pytest_ddp.errors import PytestDDPError
from pytest_ddp.outcomes.failure import failures
from pytest_ddp.outcomes.outcome import Raised, Returned, Skipped
from pytest_ddp.planning.world import World
from pytest_ddp.pool.pool import RankPool
from pytest_ddp.remote_calls.objects import Held
from pytest_ddp.remote_calls.pickling import pickle_call

TIMEOUT = 60.0


def run(ranks: RankPool, target, size: int = 2, payloads=b"", timeout: float = TIMEOUT):
    return ranks.run(World(size), f"{rank_targets.__name__}:{target.__name__}", payloads, timeout=timeout)


def bodies(outcomes) -> list[bytes]:
    assert not failures(outcomes), failures(outcomes)
    return [outcome.body for outcome in outcomes]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_rank_runs_in_a_group_of_the_asked_size(ranks, size):
    assert bodies(run(ranks, rank_targets.all_reduce, size)) == [str(4 * size).encode()] * size


def test_the_environment_agrees_with_the_group(ranks):
    assert bodies(run(ranks, rank_targets.place, 3)) == [b"0 3 0 0 3 3", b"1 3 1 1 3 3", b"2 3 2 2 3 3"]


def test_each_rank_gets_its_own_payload(ranks):
    assert bodies(run(ranks, rank_targets.echo, payloads=[b"for 0", b"\x00for 1"])) == [b"for 0", b"\x00for 1"]


def test_large_payloads_arrive(ranks):
    large = bytes(8_000_000)
    assert bodies(run(ranks, rank_targets.echo, payloads=large)) == [large, large]


def test_ranks_stay_warm_between_runs(ranks):
    first = bodies(run(ranks, rank_targets.process_id, 2))
    assert bodies(run(ranks, rank_targets.process_id, 3))[:2] == first


def test_ranks_run_in_a_process_that_has_more_than_1024_files_open():
    """`select` takes descriptors up to 1023 only; each rank has three in the controller."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
        for _ in range(1024):
            stack.enter_context(open(os.devnull))  # noqa: PTH123
        with RankPool() as pool:
            assert bodies(run(pool, rank_targets.all_reduce)) == [b"8", b"8"]


def test_a_fresh_pool_has_processes_of_its_own(ranks):
    warm = bodies(run(ranks, rank_targets.process_id))
    with ranks.fresh() as own:
        assert not set(bodies(run(own, rank_targets.process_id))) & set(warm)
    assert bodies(run(ranks, rank_targets.process_id)) == warm


def test_objects_on_ranks_cannot_be_used_after_the_pool_is_closed():
    with RankPool() as pool:
        held = Held(pool, lambda: nullcontext(World(2)), TIMEOUT, pickle_call(list, ("ab",), {}))
        assert held.run(len) == [2, 2]
        pool.close()
        with pytest.raises(PytestDDPError, match=r"no longer hold the object: their processes have ended; create"):
            held.run(len)
        held.close()


def test_output_of_both_streams_is_kept_per_rank_whatever_the_bytes(ranks):
    outputs = [outcome.output for outcome in run(ranks, rank_targets.prints)]
    assert outputs == [f"out {rank}\nerr {rank}\nraw \\xff bytes\n" for rank in (0, 1)]


def test_output_of_an_earlier_run_is_not_shown_again(ranks):
    run(ranks, rank_targets.prints)
    assert [outcome.output for outcome in run(ranks, rank_targets.all_reduce)] == ["", ""]


def test_a_very_long_output_keeps_its_beginning_and_end(ranks):
    output = run(ranks, rank_targets.prints_without_end)[0].output
    assert output.startswith("line 0\n")
    assert output.endswith("line 19999\n")
    assert "bytes left out" in output
    assert len(output) < 70_000


def test_a_skip_has_its_reason(ranks):
    outcomes = run(ranks, rank_targets.one_skips)
    assert isinstance(outcomes[0], Returned)
    assert isinstance(outcomes[1], Skipped)
    assert outcomes[1].reason == "not me"


def test_an_exception_without_text_is_still_reported(ranks):
    (outcome,) = run(ranks, rank_targets.raises_unprintable, 1)
    assert isinstance(outcome, Raised)
    assert outcome.kind.endswith("UnprintableError")
    assert outcome.message == "<its message could not be made: RuntimeError>"


def test_the_record_names_collectives_of_every_group(ranks):
    record = [str(one) for one in run(ranks, rank_targets.subgroup)[0].collectives]
    assert "all_reduce #1 float64[3] in group '1' of ranks 0, 1" in record
    assert any(text.startswith("broadcast #") and "float32[2, 2]" in text for text in record)


def test_the_record_starts_again_with_every_group(ranks):
    for _ in range(2):
        record = run(ranks, rank_targets.one_exits)[1].collectives
        assert [str(one) for one in record if one.op == "all_reduce"] == ["all_reduce #1 float32[4]"]


def test_an_unknown_target_is_reported_by_every_rank(ranks):
    outcomes = ranks.run(World(2), "rank_targets:missing", timeout=TIMEOUT)
    assert [outcome.kind for outcome in outcomes] == ["AttributeError", "AttributeError"]


def test_groups_leave_no_threads_and_files(ranks):
    pids = [int(body) for body in bodies(run(ranks, rank_targets.process_id))]
    held = [held_by(pid) for pid in pids]
    for _ in range(100):
        run(ranks, rank_targets.all_reduce)
    for pid, before in zip(pids, held, strict=True):
        wait_until(lambda pid=pid, before=before: held_by(pid) <= before + 20)  # a leak would be several hundred


def test_ranks_that_cannot_free_their_groups_are_replaced(ranks):
    seen = [tuple(bodies(run(ranks, rank_targets.is_never_freed))) for _ in range(100)]
    assert len({first for first, _ in seen}) == len({second for _, second in seen}) == 2


def wait_until(holds) -> None:
    """Wait until something holds: groups are destroyed in threads."""
    attempts = iter(range(300))
    while not holds():
        assert next(attempts, None) is not None, "still not so after 30 seconds"
        threading.Event().wait(0.1)


def held_by(pid: int) -> int:
    process = psutil.Process(pid)
    return process.num_fds() + process.num_threads()
