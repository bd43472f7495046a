"""Every operation gives the same result on an observed group as on a plain one, and is recorded."""

import pickle
from pathlib import Path

import observed_operations
import pytest
from observed_operations import OPERATIONS

from pytest_ddp.outcomes.failure import failures
from pytest_ddp.planning.world import World

SOURCE = Path(observed_operations.__file__)


@pytest.fixture(scope="module")
def runs(ranks):
    """The results and entries of each rank for each operation, first plain, then observed."""
    found = []
    for observe in (False, True):
        outcomes = ranks.run(World(2, observe=observe), "observed_operations:run_all", timeout=120)
        assert not failures(outcomes), failures(outcomes)
        found.append([pickle.loads(outcome.body) for outcome in outcomes])  # noqa: S301  from our own target
    return found


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_equal_to_the_last_bit(runs, name):
    plain, observed = runs
    assert [rank[name][0] for rank in observed] == [rank[name][0] for rank in plain]


@pytest.mark.parametrize("name", OPERATIONS)
def test_without_observing_nothing_is_recorded(runs, name):
    assert all(not rank[name][1] for rank in runs[0])


def entries(runs, name):
    return [rank[name][1] for rank in runs[1]]


def works(runs, name) -> bool:
    """Whether this version of torch supports the operation over gloo."""
    result = runs[1][0][name][0]
    return not (isinstance(result, str) and result.startswith("RuntimeError"))


# operation -> attributes of every rank's first entry
SAID = {
    "all_reduce": {"op": "all_reduce", "shapes": ((4,),), "dtype": "float32", "bytes": 16, "reduce_op": "SUM"},
    "all_reduce_async_maximum": {"op": "all_reduce", "reduce_op": "MAX", "asynchronous": True},
    "all_reduce_future": {"op": "all_reduce", "asynchronous": True},
    "all_reduce_of_the_group_itself": {"op": "all_reduce", "called": ""},
    "all_reduce_coalesced": {"op": "all_reduce_coalesced", "shapes": ((4,), (2,)), "bytes": 24},
    "all_reduce_coalesced_directly": {"op": "all_reduce_coalesced", "shapes": ((4,), (2,)), "asynchronous": False},
    "broadcast": {"op": "broadcast", "root": 1, "asynchronous": False},
    "broadcast_async": {"op": "broadcast", "root": 0, "asynchronous": True},
    "reduce": {"op": "reduce", "root": 1, "reduce_op": "PRODUCT"},
    "all_gather": {"op": "all_gather", "shapes": ((4,),), "outputs": ((4,), (4,)), "bytes": 16},
    "all_gather_into_tensor": {"op": "all_gather_into_tensor", "shapes": ((4,),), "outputs": ((8,),)},
    "all_gather_into_tensor_coalesced": {"op": "all_gather_into_tensor_coalesced", "shapes": ((4,), (2,))},
    "all_gather_object": {"called": "all_gather_object", "dtype": "int64"},
    "gather": {"op": "gather", "root": 1, "shapes": ((4,),)},
    "gather_object": {"called": "gather_object"},
    "scatter": {"op": "scatter", "root": 0},
    "scatter_object_list": {"called": "scatter_object_list"},
    "broadcast_object_list": {"op": "broadcast", "called": "broadcast_object_list", "root": 1},
    "reduce_scatter": {"op": "reduce_scatter", "shapes": ((2,), (2,)), "outputs": ((2,),), "reduce_op": "SUM"},
    "reduce_scatter_tensor": {"op": "reduce_scatter_tensor", "shapes": ((4,),), "outputs": ((2,),)},
    "all_to_all": {"op": "all_to_all", "shapes": ((2,), (2,)), "outputs": ((2,), (2,))},
    "all_to_all_single": {"op": "all_to_all_single", "shapes": ((4,),), "splits": ((), ())},
    "barrier": {"op": "barrier", "shapes": (), "dtype": "", "asynchronous": False},
    "monitored_barrier": {"op": "monitored_barrier", "asynchronous": False},
}


@pytest.mark.parametrize("name", SAID)
def test_the_record_has_the_arguments_of_the_call(runs, name):
    if not works(runs, name):
        pytest.skip(runs[1][0][name][0])
    for rank in entries(runs, name):
        said = {attribute: getattr(rank[0], attribute) for attribute in SAID[name]}
        assert said == SAID[name]


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "new_group"])
def test_the_line_is_in_the_program(runs, name):
    source = SOURCE.read_text().splitlines()
    function = OPERATIONS[name].__code__
    first = function.co_firstlineno
    last = max(line for _, _, line in function.co_lines() if line)
    for entry in [entry for rank in entries(runs, name) for entry in rank]:
        file, _, number = entry.line.rpartition(":")
        assert Path(file).name == SOURCE.name
        assert first <= int(number) <= last, source[int(number) - 1]


def test_both_sides_of_a_message_are_recorded(runs):
    (sent,), (received,) = entries(runs, "send_and_recv")
    assert (sent.op, sent.peer, sent.tag, sent.sequence, sent.asynchronous) == ("send", 1, 3, 1, False)
    assert (received.op, received.peer, received.tag, received.sequence) == ("recv", 0, 3, 1)
    assert sent.shapes == received.shapes == ((4,),)
    (received,), (sent,) = entries(runs, "recv_from_anybody")
    assert (received.op, received.peer, sent.op, sent.peer) == ("recv", None, "send", 0)


def test_messages_are_counted_for_each_peer_and_tag(runs):
    for rank, entry in enumerate(entries(runs, "isend_and_irecv")):
        assert [(e.sequence, e.asynchronous) for e in entry] == [(1, True)], rank
    both = entries(runs, "batch_isend_irecv")
    assert [[(e.op, e.peer, e.sequence) for e in rank] for rank in both] == [
        [("send", 1, 2), ("recv", 1, 1)],
        [("send", 0, 2), ("recv", 0, 2)],
    ]


def test_splits_that_differ_between_ranks(runs):
    first, second = (rank[0].splits for rank in entries(runs, "all_to_all_single_with_splits"))
    assert (first, second) == (((1, 3), (1, 2)), ((2, 2), (3, 2)))


def test_groups_made_from_the_default_one_are_observed_with_their_own_ranks(runs):
    for rank, found in enumerate(entries(runs, "new_group")):
        assert [(e.op, e.ranks, e.sequence) for e in found] == [
            ("all_reduce", (0, 1), 1),
            ("broadcast", (0, 1), 2),
            ("all_reduce", (rank,), 1),
            ("broadcast", (rank,), 2),
        ]
        assert [found[1].root, found[3].root] == [0, rank]
        assert len({e.group for e in found}) == 2


def test_a_split_group_is_observed(runs):
    if not works(runs, "split_group"):
        pytest.skip(runs[1][0]["split_group"][0])
    for found in entries(runs, "split_group"):
        assert [(e.op, e.ranks, e.sequence) for e in found] == [("all_reduce", (0, 1), 1)]


def test_functional_collectives_are_recorded_though_cpp_issues_them(runs):
    for found in entries(runs, "functional_collectives"):
        assert [e.op for e in found] == [
            "all_reduce",
            "all_gather_into_tensor_coalesced",
            "reduce_scatter_tensor_coalesced",
            "all_to_all_single",
            "broadcast",
            "all_to_all_single",
        ]
        assert all(e.waited for e in found)


def test_the_clock_orders_launch_wait_and_completion(runs):
    for rank in runs[1]:
        for name, (_, found) in rank.items():
            for entry in found if works(runs, name) else []:
                assert entry.completed is not None, name
                waited = entry.waited.time if entry.waited else entry.launched.time
                assert entry.launched.time <= waited < entry.completed.time, name


def test_collectives_of_the_group_are_counted_without_gaps(runs):
    """Operations that torch itself issues count too: all_gather_object issues two."""
    for rank in runs[1]:
        default = [e for _, found in rank.values() for e in found if len(e.group) == 1 and not e.point_to_point]
        world = [e.sequence for e in default if e.group == default[0].group]
        assert world == list(range(1, len(world) + 1))
