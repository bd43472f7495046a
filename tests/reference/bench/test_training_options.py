"""Commands start two ranks by default, with nccl no more than there are GPUs, and refuse models that do not exist."""

from pathlib import Path

import pytest

from reference.bench.__main__ import main
from reference.bench.ranks import ranks_to_start, uses_nccl
from reference.bench.registry import BENCHMARKS
from reference.bench.training_options import workload_of


def with_gpus(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)


@pytest.mark.parametrize(
    ("gpus", "backend", "device", "expected"),
    [
        (0, None, None, 2),
        (0, "gloo", None, 2),
        (0, "nccl", None, 1),  # which then says that there is no GPU
        (1, None, None, 1),
        (1, None, "cpu", 2),
        (1, "gloo", "cuda", 2),  # they share the GPU
        (8, None, None, 2),
    ],
)
def test_two_ranks_are_started_or_one_for_each_gpu(
    monkeypatch: pytest.MonkeyPatch, gpus: int, backend: str | None, device: str | None, expected: int
) -> None:
    with_gpus(monkeypatch, gpus)
    assert ranks_to_start(None, backend, device) == expected
    assert ranks_to_start(5, backend, device) == 5


def test_nccl_is_used_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 0)
    assert not uses_nccl(None, None)
    with_gpus(monkeypatch, 1)
    assert uses_nccl(None, None)
    assert uses_nccl(None, "cuda")
    assert not uses_nccl(None, "cpu")
    assert not uses_nccl("gloo", "cuda")


def test_in_a_torchrun_job_no_rank_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    assert ranks_to_start(2, None, None) is None


@pytest.mark.parametrize("name", ["all-reduce", "ddp", "trace", "memory"])
@pytest.mark.parametrize(("backend", "ranks"), [("nccl", 1), ("gloo", 2)])
def test_the_command_line_for_one_gpu_is_understood(name: str, backend: str, ranks: int) -> None:
    line = f"--backend {backend} --device cuda --world-size {ranks}".split()
    options = BENCHMARKS[name].parse(line, Path("out"))
    asked = options.world_sizes if name == "all-reduce" else [options.world_size]
    assert (options.backend, options.device, asked) == (backend, "cuda", [ranks])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ddp --rounds 0", "argument --rounds: 0: give a whole number of at least 1"),
        ("ddp --words x", "argument --words: x: give a whole number of at least 1"),
        ("step --warm-up -1", "argument --warm-up: -1: give a whole number of at least 0"),
        ("ddp --bucket-mb 0", "argument --bucket-mb: 0: give a number above 0"),
        ("buckets --points 1", "argument --points: 1: give a whole number of at least 2"),
        ("buckets --sizes 1 nan", "argument --sizes: nan: give a number above 0"),
        ("all-reduce --repetitions 0", "argument --repetitions: 0: give a whole number of at least 1"),
        ("all-reduce --megabytes x", "argument --megabytes: x: give a number above 0"),
        ("roofline --elements 1000", "argument --elements: 1000: give a whole number of at least 1001"),
        ("roofline --world-size 0", "argument --world-size: 0: give a whole number of at least 1"),
    ],
)
def test_numbers_that_cannot_be_measured_are_refused(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(line.split())
    assert message in capsys.readouterr().err


def test_a_model_that_does_not_exist_is_refused_before_ranks_are_started() -> None:
    with pytest.raises(ValueError, match="there is no model 'huge'"):
        workload_of(BENCHMARKS["memory"].parse(["--model", "huge"], Path("out")), "huge")
