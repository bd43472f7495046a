"""A report holds every result and picture, and can be computed again from its raw numbers."""

import io
import json
import shutil
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from reference.bench import report, verification
from reference.bench.__main__ import main
from reference.bench.benchmark import Benchmark
from reference.bench.registry import BENCHMARKS
from reference.bench.report_pages import Section, command, pictures_of
from reference.bench.result import Column, Result

pytest.importorskip("matplotlib")
ALL = list(BENCHMARKS)


def measured() -> Result:
    environment = {
        "cores": 2, "others": 0.1, "steal": 0.0, "load_before": 1.0, "load_after": 2.0, "gpus": [], "processor": "<P>",
        "memory_gb": 16.0, "system": "Linux", "python": "3.11", "torch": "2", "seed": 0,
    }  # fmt: skip
    raw = {
        "backend": "gloo", "device": "cpu", "cores": 2, "warm_up": 1, "left_out_bytes": [],
        "measurements": [
            {"world_size": 2, "bytes": size, "seconds": [[size / 1e9 + 1e-4] * 2] * 3} for size in (10**3, 10**6, 10**8)
        ],
    }  # fmt: skip
    return BENCHMARKS["all-reduce"].evaluated(raw, environment)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of one benchmark, whose ranks are replaced by given numbers."""
    out = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Benchmark, "result", lambda _self, _options: measured())
        options = Namespace(verify=None, only=["all-reduce"], minutes=10.0, out=out)
        report.run(options, Console(file=io.StringIO()))
    return out


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of that report, to be changed."""
    return shutil.copytree(made, tmp_path / "report")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are not drawn again, which takes most of the time."""
    monkeypatch.setattr("reference.bench.pictures.can_draw", lambda: False)


def wrong(folder: Path) -> list[str]:
    return [one.text for one in verification.verify(folder / "receipt.json") if not (one.is_right or one.is_note)]


def test_a_report_has_pages_pictures_numbers_and_a_receipt(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "report.md",
        "report.html",
        "receipt.json",
        *(f"all-reduce.{end}" for end in ("csv", "json", "svg")),
    }
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    assert "![all-reduce](all-reduce.svg)" in markdown
    assert "w = 1.00 GB/s, o = 100 us per call" in markdown
    assert "`python -m reference.bench all-reduce`" in markdown
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert "data:image/svg+xml;base64," in html
    assert "&lt;P&gt;, 2 cores" in html
    seal = json.loads((folder / "receipt.json").read_text(encoding="utf-8"))["seal"]
    assert seal in markdown
    assert seal in html


def test_a_page_shows_every_picture_of_its_benchmarks(tmp_path: Path) -> None:
    several = replace(BENCHMARKS["trace"], draw=lambda _raw: dict.fromkeys(["naive", "trace"]))
    names = list(several.pictures({}))
    assert names == ["trace-naive", "trace"]
    receipt = {"files": dict.fromkeys(["trace.csv", *(f"{name}.svg" for name in (*names, "tracer", "ddp"))])}
    found = pictures_of(Result("trace", "", [], [], [], {}), receipt, tmp_path)
    assert sorted(path.stem for path in found) == sorted(names)


def test_an_untouched_report_is_right(folder: Path) -> None:
    assert report.verify(folder / "report.html", Console(file=io.StringIO())) == 0


@pytest.mark.usefixtures("undrawn")
def test_the_command_verifies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["report", "--verify", str(folder / "receipt.json")])
    assert "right: report.md shows these results and this receipt." in capsys.readouterr().out


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("name", "old", "new", "finding"),
    [
        ("report.md", "w = 1.00", "w = 9.00", "report.md shows these results and this receipt."),
        ("report.html", "w = 1.00", "w = 9.00", "report.html shows these results and this receipt."),
        ("all-reduce.csv", "1.0", "9.0", "all-reduce.csv is the receipt's."),
        ("all-reduce.svg", "</svg>", " </svg>", "all-reduce.svg is the receipt's."),
        (
            "all-reduce.json",
            "w = 1.00",
            "w = 9.00",
            "all-reduce: the table and the sentences follow from the raw numbers.",
        ),
        ("all-reduce.json", '"bytes": 1000,', '"bytes": 1001,', "all-reduce: the raw numbers are the receipt's."),
        ("receipt.json", '"minutes": 10.0', '"minutes": 1.0', "The seal belongs to the receipt."),
    ],
)
def test_an_edit_is_found(folder: Path, name: str, old: str, new: str, finding: str) -> None:
    edit(folder / name, old, new)
    assert finding in wrong(folder)
    console = Console(file=io.StringIO())
    assert report.verify(folder, console) == 1
    assert isinstance(console.file, io.StringIO)
    assert f"wrong: {finding}" in console.file.getvalue()


def test_a_picture_of_other_numbers_is_found(folder: Path) -> None:
    edit(folder / "all-reduce.svg", "</svg>", " </svg>")
    assert "all-reduce.svg shows the raw numbers." in wrong(folder)


@pytest.mark.usefixtures("undrawn")
def test_a_foreign_picture_is_found_and_not_shown(folder: Path) -> None:
    shutil.copy(folder / "all-reduce.svg", folder / "all-reduce-better.svg")
    assert wrong(folder) == ["all-reduce-better.svg is in the folder, but not in the receipt."]


@pytest.mark.usefixtures("undrawn")
def test_a_missing_picture_is_found(folder: Path) -> None:
    (folder / "all-reduce.svg").unlink()
    assert set(wrong(folder)) == {
        "all-reduce.svg is the receipt's.",
        "report.html shows these results and this receipt.",
    }


def test_a_new_report_removes_the_files_of_the_earlier_one(folder: Path) -> None:
    """Another file stays: it is nobody's."""
    receipt = json.loads((folder / "receipt.json").read_text(encoding="utf-8"))
    receipt["files"]["ddp.svg"] = "of a benchmark that the new report does not have"
    (folder / "receipt.json").write_text(json.dumps(receipt), encoding="utf-8")
    for name in ("ddp.svg", "mine.txt"):
        (folder / name).touch()
    about = report.About("now", 1.0, {"all-reduce": ""}, {})
    report.write(folder, [Section("", measured())], about, Console(file=io.StringIO()))
    assert not (folder / "ddp.svg").exists()
    assert (folder / "mine.txt").exists()
    assert wrong(folder) == []


@pytest.mark.usefixtures("undrawn")
def test_rounding_of_another_torch_is_no_edit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluated(self: Benchmark, raw: Any, environment: Any) -> Result:
        result = original(self, raw, environment)
        rows = [[cell * factor if isinstance(cell, float) else cell for cell in row] for row in result.rows]
        return replace(result, rows=rows)

    original = Benchmark.evaluated
    monkeypatch.setattr(Benchmark, "evaluated", evaluated)
    factor = 1 + 1e-12
    assert wrong(folder) == []
    factor = 1 + 1e-6
    assert wrong(folder) == ["all-reduce: the table and the sentences follow from the raw numbers."]


def test_numbers_that_cannot_be_drawn_are_wrong_rather_than_an_error(folder: Path) -> None:
    data = json.loads((folder / "all-reduce.json").read_text(encoding="utf-8"))
    data["raw"]["measurements"][0]["seconds"] = [[0.0, 0.0]] * 3
    (folder / "all-reduce.json").write_text(json.dumps(data), encoding="utf-8")
    cause = "ZeroDivisionError('float division by zero')"
    assert f"all-reduce: the pictures cannot be drawn again: {cause}." in wrong(folder)


@pytest.mark.usefixtures("undrawn")
def test_other_code_is_a_note(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reference.bench.receipt.hash_of_code", lambda: "other")
    assert wrong(folder) == []
    assert "Other code measured; the present code recomputes." in [f.text for f in verification.verify(folder)]


@pytest.mark.usefixtures("undrawn")
def test_numbers_of_another_kind_are_wrong_rather_than_an_error(folder: Path) -> None:
    data: dict[str, Any] = json.loads((folder / "all-reduce.json").read_text(encoding="utf-8"))
    (folder / "all-reduce.json").write_text(json.dumps({**data, "raw": {}}), encoding="utf-8")
    assert wrong(folder)


def test_without_a_receipt_there_is_one_finding(tmp_path: Path) -> None:
    [finding] = verification.verify(tmp_path / "receipt.json")
    assert not finding.is_right
    assert "cannot be read" in finding.text


@pytest.mark.usefixtures("undrawn")
def test_what_is_not_in_the_report_is_noted_with_the_reason(folder: Path) -> None:
    notes = [one.text for one in verification.verify(folder) if one.is_note]
    assert {f"{name} is not in the report: it was not asked for." for name in ALL if name != "all-reduce"} <= set(notes)
    receipt = json.loads((folder / "receipt.json").read_text(encoding="utf-8"))
    receipt["about"]["missing"] = {"ddp": "no time was left"}
    (folder / "receipt.json").write_text(json.dumps(receipt), encoding="utf-8")
    assert "ddp is not in the report: no time was left." in [one.text for one in verification.verify(folder)]


TINY = {
    "roofline": "--width 64 --elements 10000 --seconds 0.05",
    "all-reduce": "--world-sizes 2 --megabytes 0.001 0.1 --seconds 0.05",
    "ddp": "--models 16x1 --rounds 2 --seconds 1",
    "buckets": "--model 16x1 --points 3 --rounds 2 --seconds 1",
    "trace": "--model 16x1 --words 4",
    "memory": "--model 16x1 --words 4",
    "step": "--model 16x1 --rounds 2",
    "models": "--sizes tiny 2.7b --seconds 0.01",
}


@pytest.mark.long
def test_a_report_of_all_benchmarks_follows_from_its_raw_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_SIZES", {name: [report.Size(1, line)] for name, line in TINY.items()})
    report.run(Namespace(verify=None, only=None, minutes=30.0, out=tmp_path), Console(file=io.StringIO()))
    findings = verification.verify(tmp_path)
    assert [one.text for one in findings if not one.is_right] == []
    for name in ALL:
        assert {
            f"{name}: the raw numbers are the receipt's.",
            f"{name}: the table and the sentences follow from the raw numbers.",
            f"{name}.csv is the receipt's.",
        } <= {one.text for one in findings}
        drawn = f"{name}-naive.svg" if name == "trace" else f"{name}.svg"
        assert f"{drawn} shows the raw numbers." in [one.text for one in findings]
        sentences = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))["sentences"]
        assert any("GPU" in sentence for sentence in sentences)  # what one would change
    assert not list(tmp_path.glob("*.profiler.json"))


def test_ranks_of_a_job_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANK", "0")
    options = Namespace(verify=None, only=None, minutes=1.0, out=tmp_path)
    with pytest.raises(SystemExit, match="report starts ranks for each benchmark: run it without torchrun or srun"):
        report.run(options, Console(file=io.StringIO()))


def test_sections_name_their_command() -> None:
    section = Section("--seconds 1", Result("ddp", "", [Column("a")], [], [], {}))
    assert command(section) == "python -m reference.bench ddp --seconds 1"
