"""The two traces of one step, from synthetic ones with known answers."""

from dataclasses import asdict
from typing import Any

import pytest

from reference.bench.chrome_traces import Span, Step, of_rank, read_step, without_gaps


def seen(name: str, start: float, end: float, cat: str = "cpu_op") -> dict[str, Any]:
    """An event of torch's profiler; times in milliseconds, which the profiler counts from 1000."""
    return {
        "ph": "X",
        "name": name,
        "cat": cat,
        "pid": 77,
        "tid": 1,
        "ts": 1e6 + 1e3 * start,
        "dur": 1e3 * (end - start),
    }


def made(name: str, start: float, end: float, cat: str = "operation") -> dict[str, Any]:
    """An event of the record; times in milliseconds of the machine's clock, at which the profiler began at 50."""
    times = {"ts": 1e3 * (50 + start), "dur": 1e3 * (end - start)}
    return {
        "ph": "X",
        "name": name,
        "cat": cat,
        "pid": 0,
        "args": {"bytes": 400} if cat == "operation" else {},
        **times,
    }


PHASES = [
    seen("clock", 0, 0.01, "user_annotation"),
    seen("phase: forward", 0, 10, "user_annotation"),
    seen("phase: backward", 10, 20, "user_annotation"),
    seen("phase: exchange", 20, 30, "user_annotation"),
    seen("phase: optimizer", 30, 32, "user_annotation"),
]
COMPUTATION = [
    seen("aten::mm", 0, 10),
    seen("autograd::engine::evaluate_function: AddmmBackward0", 10, 20),  # only calls others, and waits
    seen("AddmmBackward0", 10, 20),
    seen("aten::mm", 10, 13),
    seen("aten::mm", 14, 18),
    seen("aten::as_strided", 15, 16),
]
LAUNCHES = [seen("c10d::allreduce_", 12, 12.5), seen("c10d::_allgather_base_", 21, 21.5)]
COLLECTIVES = [seen("gloo:all_reduce", 12, 20, "user_annotation"), seen("gloo:all_gather", 21, 29, "user_annotation")]
RECORD = [
    made("all_reduce #1", 11.9, 30),
    made("all_gather_into_tensor #2", 20.8, 30),
    made("wait", 22, 30, "wait"),
    made("backward 1", 10, 20, "autograd"),
]


def read(profiler: list[dict[str, Any]], record: list[dict[str, Any]] = RECORD) -> Step:
    return read_step(profiler, record, clock=50e3)


def test_a_step_with_a_known_overlap() -> None:
    """Collectives run for 16 ms. The rank computes in 1 + 4 of them: from 12 to 13 and from 14 to 18."""
    step = read([*PHASES, *COMPUTATION, *LAUNCHES, *COLLECTIVES])
    assert step.milliseconds == 32
    assert [phase.name for phase in step.phases] == ["forward", "backward", "exchange", "optimizer"]
    assert [round(time, 6) for interval in step.computed for time in interval] == [50, 63, 64, 68]
    assert (step.communication, step.hidden) == pytest.approx((16, 5))
    assert step.overlap_percent == pytest.approx(100 * 5 / 16)
    assert step.waited == pytest.approx(8)
    assert step.bytes == 800


def test_a_step_that_communicates_nothing_has_no_overlap() -> None:
    step = read([*PHASES, *COMPUTATION], [])
    assert (step.communication, step.overlap_percent, step.launch_differences) == (0, None, [])
    assert step.agree


def test_on_cuda_kernels_compute_and_communicate() -> None:
    kernels = [
        seen("sgemm", 0, 10, "kernel"),
        seen("sgemm", 14, 18, "kernel"),
        seen("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 12, 16, "kernel"),
        seen("ncclDevKernel_AllGather_RING_LL", 21, 22, "kernel"),
    ]
    again = [{**phase, "cat": "gpu_user_annotation", "dur": 2 * phase["dur"]} for phase in PHASES]
    step = read([*PHASES, *again, *COMPUTATION, *LAUNCHES, *kernels])
    assert (step.communication, step.hidden) == pytest.approx((5, 2))
    assert step.agree
    assert [phase.name for phase in step.phases] == ["forward", "backward", "exchange", "optimizer"]
    assert step.milliseconds == 32


def test_on_cuda_a_collective_of_gloo_counts_once() -> None:
    """Its span is there again on the GPU's timeline, with the time until its copies have run."""
    on_gpu = seen("gloo:all_reduce", 14, 30, "gpu_user_annotation")
    step = read([*PHASES, *COMPUTATION, *LAUNCHES, *COLLECTIVES, on_gpu, seen("sgemm", 0, 10, "kernel")])
    assert [span.name for span in step.profiled] == ["gloo:all_reduce", "gloo:all_gather"]
    assert step.communication == pytest.approx(16)


def test_what_the_profiler_saw_before_the_step_does_not_count() -> None:
    """The ranks wait for each other after the profiler has started."""
    before = [seen("c10d::barrier", -9, -1), seen("gloo:barrier", -8, -1), seen("aten::empty", -7, -6)]
    step = read([*before, *PHASES, *COMPUTATION, *LAUNCHES, *COLLECTIVES])
    assert step == read([*PHASES, *COMPUTATION, *LAUNCHES, *COLLECTIVES])
    assert step.agree


def test_profiler_and_record_agree_on_the_same_collectives() -> None:
    step = read([*PHASES, *LAUNCHES, *COLLECTIVES])
    assert step.agree
    assert step.launch_differences == pytest.approx([0.1, 0.2])


def test_gloo_runs_a_reduce_scatter_as_an_all_reduce() -> None:
    launches = [LAUNCHES[0], seen("c10d::_reduce_scatter_base_", 21, 22)]
    ran = [COLLECTIVES[0], seen("gloo:all_reduce", 21, 29, "user_annotation")]
    assert read([*PHASES, *launches, *ran], [RECORD[0], made("reduce_scatter_tensor #2", 20.8, 30)]).agree


@pytest.mark.parametrize(
    ("profiler", "record"),
    [
        ([*LAUNCHES, *COLLECTIVES], RECORD[:1]),  # one is not recorded
        ([*LAUNCHES[:1], *COLLECTIVES], RECORD),  # one was launched unseen
        ([*LAUNCHES, *COLLECTIVES[:1]], RECORD),  # one never ran
        ([*LAUNCHES, *COLLECTIVES], [made("all_gather #1", 11, 30), made("all_reduce #2", 20, 30)]),  # another order
    ],
)
def test_they_disagree_if_a_collective_differs(profiler: list[dict[str, Any]], record: list[dict[str, Any]]) -> None:
    assert not read([*PHASES, *profiler], record).agree


def test_a_step_survives_json_and_moves_as_a_whole() -> None:
    step = read([*PHASES, *COMPUTATION, *LAUNCHES, *COLLECTIVES])
    assert Step.from_json(asdict(step)) == step
    moved = step.shifted(-50)
    assert moved.phases[0] == Span("forward", 0, 10)
    assert moved.hidden == pytest.approx(step.hidden)


def test_a_rank_is_a_process_of_the_merged_trace() -> None:
    events = list(of_rank([seen("aten::mm", 0, 1), {"ph": "f", "name": "arrow"}], rank=3, shift=5.0))
    assert {event["pid"] for event in events} == {3}
    assert events[0]["args"] == {"name": "rank 3"}
    assert [event["ts"] for event in events[2:]] == [1e6 + 5]


def test_short_pauses_are_closed() -> None:
    assert without_gaps([(0, 1), (1.5, 2), (4, 5)], 0.5) == [(0, 2), (4, 5)]
