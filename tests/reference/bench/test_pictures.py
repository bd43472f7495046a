"""Pictures have the labels that were asked for, and equal numbers make equal files."""

from pathlib import Path

import pytest

from reference.bench import pictures

pytest.importorskip("matplotlib")


def drawn(path: Path) -> bytes:
    picture, axes = pictures.figure("Time by size", x="size (MB)", y="time (ms)")
    pictures.line(axes, [1, 2], [(1.0, 2.0, 3.0), (2.0, 3.0, 4.0)], "gloo", pictures.COLOURS[0])
    return pictures.save(picture, path).read_bytes()


def test_axes_have_labels_and_series() -> None:
    picture, axes = pictures.figure("Time by size", x="size (MB)", y="time (ms)")
    pictures.line(axes, [1, 2], [(1.0, 2.0, 3.0), (2.0, 3.0, 4.0)], "gloo", pictures.COLOURS[0])
    assert (axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()) == (
        "Time by size",
        "size (MB)",
        "time (ms)",
    )
    [series] = axes.lines
    assert list(series.get_ydata()) == [2, 3]
    assert picture.get_size_inches().tolist() == [8, 4.8]


def test_equal_numbers_make_equal_files(tmp_path: Path) -> None:
    assert drawn(tmp_path / "a.svg") == drawn(tmp_path / "b.svg")


def test_a_png_is_a_png(tmp_path: Path) -> None:
    assert drawn(tmp_path / "new" / "a.png").startswith(b"\x89PNG")


def test_without_matplotlib_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "can_draw", lambda: False)
    with pytest.raises(RuntimeError, match=r"pip install 'pytest-ddp\[bench\]'"):
        pictures.figure("", x="", y="")
