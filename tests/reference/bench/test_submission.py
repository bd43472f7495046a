"""Submissions to measure are found, imported, and refused with a reason."""

from pathlib import Path

import pytest

from pytest_ddp import distributed
from reference.bench.__main__ import main
from reference.bench.submission import Submission, SubmissionError, kind, load_submission, submitted

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


def test_a_submission_that_cannot_be_imported_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "adapters.py").write_text("import no_such_package_anywhere\n\n\ndef get_ddp(module): ...\n")
    with pytest.raises(SubmissionError, match=r"cannot be imported \(No module named 'no_such_package_anywhere'\)"):
        load_submission(str(tmp_path))


@pytest.mark.parametrize("command", ["ddp", "buckets", "trace", "memory", "step"])
def test_commands_refuse_what_is_no_submission(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--submission", "no such folder"])
    assert "no such folder is no folder, no file and no module" in capsys.readouterr().err
