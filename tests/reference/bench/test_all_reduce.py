"""The benchmark of all-reduces computes bandwidth, quartiles and a fit from the seconds of ranks."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_ddp import distributed
from reference.bench import all_reduce_times
from reference.bench.__main__ import main
from reference.bench.all_reduce import default_world_sizes, draw, evaluate
from reference.bench.all_reduce_times import Measurement, bus_bandwidth, fits, measurements
from reference.bench.method import Spread
from reference.bench.registry import BENCHMARKS


def test_bus_bandwidth_counts_what_a_link_must_carry() -> None:
    assert bus_bandwidth(1000, 0.5, world_size=2) == 2000
    assert bus_bandwidth(1000, 0.5, world_size=4) == 3000
    assert bus_bandwidth(1000, 0.5, world_size=1) == 0


def test_quartiles_are_over_ranks_and_repetitions_and_bandwidth_is_the_slowest_ranks() -> None:
    found = Measurement(2, 1000, [[1.0, 2.0], [3.0, 4.0], [5.0, 5.0]])
    assert found.all_ranks == Spread(2.25, 3.5, 4.75)
    assert found.slowest.median == 4
    assert found.bandwidths.median == 250


def exact(left_out: list[int] | None = None) -> dict[str, object]:
    """Numbers of links with 2 GB/s and 100 us per call at 2 ranks, and with 1 GB/s and 200 us at 4 ranks."""
    return {
        "backend": "gloo",
        "device": "cpu",
        "cores": 2,
        "warm_up": 5,
        "left_out_bytes": left_out or [],
        "measurements": [
            {"world_size": n, "bytes": size, "seconds": [[size / w + o] * n] * 3}
            for n, w, o in ((2, 2e9, 1e-4), (4, 1e9, 2e-4))
            for size in (10**3, 10**6, 10**9)
        ],
    }


def test_the_fit_finds_bandwidth_and_overhead_of_each_world_size() -> None:
    lines = fits(measurements(exact()))
    assert lines[2] == pytest.approx((2e9, 1e-4))
    assert lines[4] == pytest.approx((1e9, 2e-4))


def test_sentences_are_computed_from_the_numbers() -> None:
    found = evaluate(exact([2 * 10**9]))
    assert found.rows[2] == pytest.approx([2, 1000, 500.1, 500.1, 500.1, 500.1, 1.9996, 3], rel=1e-5)
    text = " ".join(found.sentences)
    assert "2 ranks: w = 2.00 GB/s, o = 100 us per call; 4 ranks: w = 1.00 GB/s, o = 200 us per call" in text
    assert "The highest bus bandwidth is 2.00 GB/s, with 2 ranks and 1000 MB." in text
    assert "Here the cores copy and add the numbers, 4 ranks on 2 cores; with a GPU for each rank" in text
    assert "Tensors of 2000 MB are left out" in text


def test_times_that_do_not_fit_are_reported() -> None:
    raw = exact()
    raw["measurements"] = [{"world_size": 2, "bytes": 1000, "seconds": [[1.0, 1.0]]}]
    assert "2 ranks: no fit, all-reduces of 1 different sizes" in evaluate(raw).sentences[0]


def test_a_single_rank_has_no_link() -> None:
    raw = exact() | {"backend": "nccl", "device": "cuda"}
    raw["measurements"] = [{"world_size": 1, "bytes": size, "seconds": [[1e-5]] * 3} for size in (10**3, 10**6)]
    assert evaluate(raw).sentences == ["A single rank sends nothing."]
    assert [row[6] for row in evaluate(raw).rows] == [0, 0]


def test_sizes_that_are_all_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=10))
    options = BENCHMARKS["all-reduce"].parse(["--world-sizes", "2", "--megabytes", "1"], Path("out"))
    with pytest.raises(ValueError, match="no tensor of --megabytes fits into the free memory on 2 ranks"):
        BENCHMARKS["all-reduce"].measure(options)


def test_the_picture_shows_times_with_their_fit_and_bandwidths() -> None:
    pytest.importorskip("matplotlib")
    times, bandwidths = draw(exact())["all-reduce"].axes
    assert (times.get_xlabel(), times.get_ylabel()) == ("tensor (MB)", "time (ms)")
    assert (bandwidths.get_xlabel(), bandwidths.get_ylabel()) == ("tensor (MB)", "GB/s")
    assert [text.get_text() for text in times.get_legend().get_texts()] == [
        "2 ranks: w = 2.00 GB/s, o = 100 us",
        "4 ranks: w = 1.00 GB/s, o = 200 us",
    ]
    assert list(bandwidths.lines[0].get_ydata()) == pytest.approx(
        [bus_bandwidth(s, s / 2e9 + 1e-4, 2) / 1e9 for s in (10**3, 10**6, 10**9)]
    )


def test_with_nccl_there_are_no_more_ranks_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_world_sizes("gloo", None) == [2, 4, 6]
    for gpus, world_sizes in ((1, [1]), (2, [2]), (5, [2, 4]), (8, [2, 4, 6])):
        monkeypatch.setattr("torch.cuda.device_count", lambda gpus=gpus: gpus)
        assert default_world_sizes("nccl", None) == world_sizes


@distributed(world_size=3)
def test_a_group_of_the_first_ranks_is_measured_round_by_round(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[tuple[int, int]] = []
    one = all_reduce_times._time_one

    def recorded(tensor, group):
        order.append((tensor.nbytes, len(order)))
        return one(tensor, group)

    monkeypatch.setattr(all_reduce_times, "_time_one", recorded)
    found = all_reduce_times.measure_on_ranks([2, 3, 4], [400, 4000], warm_up=1, most=2, seconds=10)
    assert [size for size, _ in order] == [400, 4000] * 6  # a warm-up and two repetitions of each group
    assert (found["backend"], found["device"]) == ("gloo", "cpu")
    shapes = [
        (one["world_size"], one["bytes"], [len(ranks) for ranks in one["seconds"]]) for one in found["measurements"]
    ]
    assert shapes == [(2, 400, [2, 2]), (2, 4000, [2, 2]), (3, 400, [3, 3]), (3, 4000, [3, 3])]
    assert all(seconds > 0 for one in found["measurements"] for ranks in one["seconds"] for seconds in ranks)


def test_the_command_writes_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(
        [
            "all-reduce",
            "--world-sizes",
            "2",
            "--megabytes",
            "0.001",
            "0.1",
            "--repetitions",
            "3",
            "--out",
            str(tmp_path),
        ]
    )
    printed = capsys.readouterr().out
    assert "All-reduce (gloo, cpu)" in printed
    with (tmp_path / "all-reduce.csv").open(encoding="utf-8") as lines:
        assert [row["size (MB)"] for row in csv.DictReader(lines)] == ["0.001", "0.1"]
    data = json.loads((tmp_path / "all-reduce.json").read_text(encoding="utf-8"))
    assert data["environment"]["cores"] >= 1
    assert data["sentences"] == [*evaluate(data["raw"]).sentences, data["sentences"][-1]]
    assert (tmp_path / "all-reduce.svg").is_file()
