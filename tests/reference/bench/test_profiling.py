"""The profiler's events are sorted into communication and computation; memory is counted at its peak."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

from pytest_ddp import distributed
from reference.bench import profiling
from reference.bench.contestants import NONE, WRAPPERS, Workload, batch, contestant, size_of
from reference.bench.profiling import intervals_of, peak_bytes, profile_intervals


def event(name: str, start: float, end: float, device: DeviceType = DeviceType.CPU) -> SimpleNamespace:
    span = SimpleNamespace(start=start, end=end)
    is_annotation = name.startswith("Optimizer.step")
    return SimpleNamespace(name=name, time_range=span, device_type=device, is_user_annotation=is_annotation)


def test_a_gloo_step_with_a_known_overlap() -> None:
    """The all-reduce runs for 4 s. In the first 3 of them, backward computes."""
    found = intervals_of(
        [
            event("aten::mm", 0e6, 2e6),
            event("autograd::engine::evaluate_function: MmBackward0", 2e6, 9e6),  # with a hook that waits at its end
            event("MmBackward0", 2e6, 9e6),
            event("aten::mm", 2e6, 6e6),
            event("c10d::allreduce_", 2.5e6, 9e6),
            event("gloo:all_reduce", 3e6, 7e6),
        ],
        9.0,
        on_cuda=False,
    )
    assert found.communication == [(3, 7)]
    assert found.computation == [(0, 6)]
    assert (found.communication_seconds, found.exposed_seconds) == (4, 1)


def test_ranks_start_together_after_the_profiler_and_nothing_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    seen = [
        event("gloo:barrier", 1e6, 4e6),
        event("aten::empty", 1e6, 2e6),
        event("measured from here", 5e6, 9e6),
        event("aten::mm", 5e6, 6e6),
        event("gloo:all_reduce", 6e6, 8e6),
    ]

    @contextmanager
    def profile(**_: Any) -> Any:
        order.append("the profiler starts")
        yield SimpleNamespace(events=lambda: seen)

    monkeypatch.setattr(profiling, "profile", profile)
    monkeypatch.setattr(profiling.dist, "barrier", lambda: order.append("ranks wait for each other"))
    found = profile_intervals(lambda: order.append("the function runs"))
    assert order == ["the profiler starts", "ranks wait for each other", "the function runs"]
    assert (found.communication, found.computation) == ([(6, 8)], [(5, 6)])


def test_on_cuda_copies_of_gloo_do_not_compute() -> None:
    found = intervals_of(
        [
            event("gloo:all_reduce", 1e6, 5e6),
            event("Memcpy DtoH (Device -> Pinned)", 1e6, 2e6, DeviceType.CUDA),
            event("Memset (Device)", 3e6, 3.5e6, DeviceType.CUDA),
            event("sgemm_kernel", 4e6, 5e6, DeviceType.CUDA),
        ],
        9.0,
        on_cuda=True,
    )
    assert (found.communication, found.computation) == ([(1, 5)], [(4, 5)])
    assert found.exposed_seconds == 3


def test_on_cuda_only_kernels_count() -> None:
    found = intervals_of(
        [
            event("aten::mm", 0, 1e6),
            event("nccl:all_reduce", 0, 1e6),
            event("Optimizer.step#SGD.step", 0, 9e6, DeviceType.CUDA),
            event("sgemm_kernel", 1e6, 3e6, DeviceType.CUDA),
            event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 2e6, 6e6, DeviceType.CUDA),
        ],
        9.0,
        on_cuda=True,
    )
    assert (found.communication, found.computation) == ([(2, 6)], [(1, 3)])
    assert found.exposed_seconds == 3


def test_the_peak_counts_what_tensors_hold_at_once() -> None:
    def function() -> None:
        one = torch.ones(1000, dtype=torch.float64)
        two = torch.ones(500, dtype=torch.float64)
        del one, two
        torch.ones(1200, dtype=torch.float64)

    assert peak_bytes(function) == 12_000


def test_models_have_names() -> None:
    size, vocabulary = size_of("128x3")
    assert (size.d_model, size.d_ff, size.layers, size.heads, vocabulary) == (128, 512, 3, 2, 1000)
    assert size_of("small")[0].layers == 12
    with pytest.raises(ValueError, match="no model 'x3'"):
        size_of("x3")


@distributed(world_size=2)
def test_every_contestant_takes_the_same_step_and_only_none_is_silent() -> None:
    workload = Workload("16x1", 2, 4, bucket_mb=0.02)
    results = {}
    for name in WRAPPERS:
        one = contestant(name, workload)
        found = profile_intervals(lambda one=one: one.step(batch(workload)))
        assert found.communication_seconds > 0, name
        assert found.computation, name
        results[name] = torch.cat([p.detach().flatten() for p in one.model.parameters()])
    for name in WRAPPERS:
        torch.testing.assert_close(results[name], results["naive"])
    silent = contestant(NONE, workload)
    assert profile_intervals(lambda: silent.step(batch(workload))).communication == []
