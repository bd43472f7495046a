"""The file of known failures: what is read, what is refused, and what `--update-known-failures` writes."""

import pytest

from conformance.library.known_failures import Change, KnownFailure, read, updated
from pytest_ddp.errors import UsageError

CHECKS = {"ddp": ["gradients_averaged", "no_sync", "trains[buffers]"]}
TEXT = """# by design

ddp no_sync it sends
ddp trains[buffers]   they stay
"""


def test_lines_are_read_with_their_numbers(tmp_path):
    file = tmp_path / "known.txt"
    file.write_text(TEXT)
    buffers = KnownFailure("ddp", "trains[buffers]", "they stay", 4)
    assert read(file, CHECKS) == {
        ("ddp", "no_sync"): KnownFailure("ddp", "no_sync", "it sends", 3),
        ("ddp", "trains[buffers]"): buffers,
    }
    assert str(buffers) == "ddp trains[buffers] they stay"


def test_without_a_file_nothing_is_known(tmp_path):
    assert read(tmp_path / "none.txt", CHECKS) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "ddp no_sinc why",
            "known.txt, line 1: ddp has no check `no_sinc`. Is `no_sync` meant? Correct or delete the line.",
        ),
        ("ddp xyz why", "known.txt, line 1: ddp has no check `xyz`. Correct or delete the line."),
        (
            "\nfsdp no_sync why",
            "known.txt, line 2: `fsdp` is not verified here; verified are ddp. Correct or delete the line.",
        ),
        (
            "ddp no_sync",
            "known.txt, line 1: `ddp no_sync` has no reason. Write one behind it: `component check reason`.",
        ),
        (
            "ddp no_sync a\nddp no_sync b",
            "known.txt, line 2: `ddp no_sync` is in line 1 already. Delete one of the two lines.",
        ),
    ],
)
def test_a_wrong_line_is_refused(tmp_path, text, words):
    file = tmp_path / "known.txt"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        read(file, CHECKS)
    assert str(raised.value) == words


def test_all_wrong_lines_are_told_at_once(tmp_path):
    file = tmp_path / "known.txt"
    file.write_text("ddp xyz why\nddp no_sync\n")
    with pytest.raises(UsageError, match=r"line 1: .*\n.*line 2: "):
        read(file, CHECKS)


def test_a_wrong_line_is_an_error_at_collection(run_library):
    run = run_library("--collect-only", known="ddp xyz why")
    assert run.ret == pytest.ExitCode.INTERRUPTED
    said = run.stdout.str()
    assert "known_failures.txt, line 1: ddp has no check `xyz`. Correct or delete the line." in said
    assert "Traceback" not in said


def test_an_update_deletes_what_is_mended_adds_what_is_new_and_keeps_the_rest():
    changes = [
        Change("ddp", "no_sync", "mended", ""),
        Change("ddp", "trains[buffers]", "known", "off by 1"),
        Change("ddp", "gradients_averaged", "new", "off by 2"),
        Change("both", "closure", "new", "off by 3"),
    ]
    assert updated(TEXT, changes) == (
        "# by design\n\nddp trains[buffers]   they stay\nboth closure off by 3\nddp gradients_averaged off by 2\n",
        2,
        1,
    )
    assert updated(TEXT, changes[1:2]) == (TEXT, 0, 0)


def test_a_new_file_says_what_it_is_and_a_long_reason_is_cut():
    text, *_ = updated("", [Change("ddp", "no_sync", "new", "word " * 100)])
    first, line = text.splitlines()
    assert first.startswith("# What fails, for `conformance.verify`: component, check, reason.")
    assert line.endswith("word word ...")
    assert len(line) < 180
    assert updated("", []) == ("", 0, 0)
