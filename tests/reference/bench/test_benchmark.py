"""A command keeps its raw numbers whatever follows, and writes on one rank of a job."""

import io
import json
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from reference.bench.benchmark import Benchmark, run
from reference.bench.registry import BENCHMARKS
from reference.bench.result import Raw, Result


def made(**changes: Any) -> Benchmark:
    """Make a benchmark that measures one number and draws nothing."""

    def draw(_: Raw) -> Mapping[str, Any]:
        return {}

    sample = replace(BENCHMARKS["ddp"], name="sample", measure=lambda _: {"seconds": [0.5]}, draw=draw)
    return replace(sample, **{"evaluate": lambda raw: Result("sample", "A sample", [], [], [], raw), **changes})


def files(benchmark: Benchmark, folder: Path) -> list[str]:
    run(benchmark, Namespace(out=folder), Console(file=io.StringIO()))
    return sorted(path.name for path in folder.glob("*"))


def test_a_command_writes_table_and_numbers(tmp_path: Path) -> None:
    assert files(made(), tmp_path) == ["sample.csv", "sample.json"]
    found = Result.from_json(json.loads((tmp_path / "sample.json").read_text(encoding="utf-8")))
    assert (found.title, found.raw) == ("A sample", {"seconds": [0.5]})


def test_the_raw_numbers_are_kept_if_the_table_cannot_be_computed(tmp_path: Path) -> None:
    def evaluate(_: Raw) -> Result:
        raise ValueError("no table")

    with pytest.raises(ValueError, match="no table"):
        files(made(evaluate=evaluate), tmp_path)
    found = json.loads((tmp_path / "sample.json").read_text(encoding="utf-8"))
    assert (found["name"], found["raw"]) == ("sample", {"seconds": [0.5]})
    assert found["environment"]["cores"] >= 1


@pytest.mark.parametrize(
    ("variables", "is_written"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, True),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, False),
        ({"SLURM_STEP_NODELIST": "n", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}, True),
        ({"SLURM_STEP_NODELIST": "n", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}, False),
    ],
)
def test_rank_0_of_a_job_writes_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, variables: dict[str, str], is_written: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert bool(files(made(), tmp_path)) == is_written
