"""Submissions to measure are found, imported, and refused with a reason."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pytest_ddp import DDPContext, distributed
from reference.bench.__main__ import main
from reference.bench.registry import BENCHMARKS
from reference.bench.result import Raw, Result
from reference.bench.submission import (
    Submission,
    SubmissionError,
    about_failed,
    failed_functions,
    kind,
    load_submission,
    submitted,
)

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_names_tell_whose_wrapper_it_is() -> None:
    assert submitted("naive") == "naive (submission)"
    assert kind(submitted("naive")) == kind("naive") == "naive"


@distributed(world_size=2)
def test_only_what_is_implemented_is_measured(tmp_path: Path) -> None:
    (tmp_path / "adapters.py").write_text(
        "def get_naive_ddp(module):\n    return module\n\n\ndef get_flat_ddp(module):\n    raise NotImplementedError\n"
    )
    found = load_submission(str(tmp_path))
    assert isinstance(found, Submission)
    assert found.wrappers() == ["naive"]
    assert not found.implements_sharded_optimizer()


@distributed(world_size=2)
def test_what_fails_is_named_and_the_rest_is_measured(tmp_path: Path, ddp: DDPContext) -> None:
    """Bucketed works only with a number of MiB, as its signature says. Flat fails, on one rank alone."""
    (tmp_path / "adapters.py").write_text(
        "import torch.distributed as dist\n\n\n"
        "def get_ddp_bucketed(module, bucket_size_mb):\n    bucket_size_mb * 1024 * 1024\n    return module\n\n\n"
        "def get_flat_ddp(module):\n    return module if dist.get_rank() == 0 else 1 / 0\n\n\n"
        "def get_sharded_optimizer(parameters, optimizer, **options):\n    raise ValueError('no options')\n"
    )
    found = load_submission(str(tmp_path))
    assert found.wrappers() == ["bucketed"]
    assert not found.implements_sharded_optimizer()
    assert about_failed(failed_functions(str(tmp_path))) == [
        f"{name} of the submission is not measured: tried on a small layer, it raised {error}."
        for name, error in (
            ("get_flat_ddp", "ZeroDivisionError: division by zero"),
            ("get_sharded_optimizer", "ValueError: no options"),
        )
    ], ddp.rank


@distributed(world_size=1)
def test_wrappers_are_tried_on_the_device_of_the_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As nccl needs it, which cannot send a tensor on the CPU."""
    seen = []
    (tmp_path / "adapters.py").write_text("")
    found = load_submission(str(tmp_path))
    found.adapters.get_naive_ddp = lambda module: seen.extend(p.device.type for p in module.parameters())
    monkeypatch.setattr("reference.bench.submission.current_device", lambda: torch.device("meta"))
    assert found.wrappers() == ["naive"]
    assert seen == ["meta", "meta"]


def test_a_result_names_what_failed() -> None:
    def evaluate(raw: Raw) -> Result:
        return Result("ddp", "", [], [], ["A sentence."], raw)

    one = replace(BENCHMARKS["ddp"], evaluate=evaluate)
    environment = {"cores": 2, "others": 0.0, "steal": 0.0, "load_before": 1.0, "load_after": 2.0}
    [first, second, noise] = one.evaluated({"failed": {"get_ddp": "TypeError: no"}}, environment).sentences
    assert (first, second) == (
        "A sentence.",
        "get_ddp of the submission is not measured: tried on a small layer, it raised TypeError: no.",
    )
    assert noise.startswith("The machine was quiet")
    assert len(one.evaluated({}, environment).sentences) == 2


def test_a_submission_that_cannot_be_imported_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "adapters.py").write_text("import no_such_package_anywhere\n\n\ndef get_ddp(module): ...\n")
    with pytest.raises(SubmissionError, match=r"cannot be imported \(No module named 'no_such_package_anywhere'\)"):
        load_submission(str(tmp_path))


@pytest.mark.parametrize("command", ["ddp", "buckets", "trace", "memory", "step"])
def test_commands_refuse_what_is_no_submission(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--submission", "no such folder"])
    assert "no such folder is no folder, no file and no module" in capsys.readouterr().err
