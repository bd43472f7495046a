"""Whether a report follows from its raw numbers: everything is computed again and compared with its files."""

import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference.bench import pictures, receipt
from reference.bench.registry import BENCHMARKS
from reference.bench.report_pages import About, Section, html_page, markdown_page, pictures_of
from reference.bench.result import Result

_ROUNDING = 1e-9  # relative


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    Attributes:
        is_right: whether it is as it must be.
        text: one sentence.
        is_note: whether it only helps to understand the others.
    """

    is_right: bool
    text: str
    is_note: bool = False


def verify(file: Path) -> list[Finding]:
    """Check a report.

    Args:
        file: its `receipt.json`, a page beside it, or their folder.

    Returns:
        What was checked; a single finding if there is no receipt.
    """
    folder = file if file.is_dir() else file.parent
    try:
        made = json.loads((folder / "receipt.json").read_text(encoding="utf-8"))
        return _check(made, {name: _read(folder, name) for name in made["raw"]}, folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [Finding(is_right=False, text=f"The receipt or its numbers cannot be read: {error!r}.")]


def _check(made: Mapping[str, Any], results: Mapping[str, Result], folder: Path) -> list[Finding]:
    return [
        *_origin(made),
        *_missing(made),
        *(finding for name, result in results.items() for finding in _check_result(made, name, result)),
        *_check_files(made, folder),
        *_check_pictures(made, results, folder),
        *_check_pages(made, results, folder),
    ]


def _read(folder: Path, name: str) -> Result:
    return Result.from_json(json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))


def _origin(made: Mapping[str, Any]) -> Iterator[Finding]:
    yield Finding(receipt.seal_of(made) == made.get("seal"), "The seal belongs to the receipt.")
    is_same = made["code"] == receipt.hash_of_code()
    yield Finding(
        is_same,
        "The code is the code that measured." if is_same else "Other code measured; the present code recomputes.",
        is_note=True,
    )
    now = receipt.versions()
    for name, measured in made["versions"].items():
        if now.get(name) != measured:
            yield Finding(is_right=False, text=f"{name} was {measured}, here it is {now.get(name)}.", is_note=True)


def _missing(made: Mapping[str, Any]) -> Iterator[Finding]:
    """Which benchmarks are not in the report, and why: nothing of them is checked."""
    for name in BENCHMARKS:
        if name not in made["raw"]:
            reason = made["about"]["missing"].get(name, "it was not asked for")
            yield Finding(is_right=False, text=f"{name} is not in the report: {reason}.", is_note=True)


def _check_result(made: Mapping[str, Any], name: str, result: Result) -> Iterator[Finding]:
    yield Finding(receipt.hash_of(result.raw) == made["raw"][name], f"{name}: the raw numbers are the receipt's.")
    again = _again(result)
    yield Finding(
        again is not None and _is_same(_as_json(receipt.shown(again)), _as_json(receipt.shown(result))),
        f"{name}: the table and the sentences follow from the raw numbers.",
    )
    yield Finding(
        receipt.hash_of(receipt.shown(result)) == made["shown"].get(name),
        f"{name}: the table, the sentences and the environment are the receipt's.",
    )


def _again(result: Result) -> Result | None:
    """The result computed from the raw numbers; None if that fails."""
    try:
        return BENCHMARKS[result.name].evaluated(result.raw, result.environment)
    except Exception:  # noqa: BLE001  # edited numbers may be of any kind
        return None


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values from JSON are equal; numbers up to rounding, which differs between versions of torch."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_ROUNDING)
    return bool(one == other)


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _check_files(made: Mapping[str, Any], folder: Path) -> Iterator[Finding]:
    for name, expected in made["files"].items():
        path = folder / Path(name).name
        yield Finding(path.is_file() and receipt.hash_of_file(path) == expected, f"{name} is the receipt's.")


def _check_pictures(made: Mapping[str, Any], results: Mapping[str, Result], folder: Path) -> Iterator[Finding]:
    """Draw the pictures again, and look for other ones. Another version of matplotlib would draw other files."""
    for path in sorted(folder.glob("*.svg")):
        if path.name not in made["files"]:
            yield Finding(is_right=False, text=f"{path.name} is in the folder, but not in the receipt.")
    if not pictures.can_draw() or receipt.versions().get("matplotlib") != made["versions"].get("matplotlib"):
        yield Finding(is_right=False, text="Pictures are not drawn again: matplotlib differs.", is_note=True)
        return
    for result in results.values():
        yield from _check_drawn(result, {path.name: path for path in pictures_of(result, made, folder)})


def _check_drawn(result: Result, kept: Mapping[str, Path]) -> Iterator[Finding]:
    """Draw a result's pictures again and compare them with those of the receipt, by name."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            figures = BENCHMARKS[result.name].pictures(result.raw)
            drawn = {f"{stem}.svg": pictures.save(each, Path(scratch, f"{stem}.svg")) for stem, each in figures.items()}
        except Exception as error:  # noqa: BLE001  # edited numbers may be of any kind
            yield Finding(is_right=False, text=f"{result.name}: the pictures cannot be drawn again: {error!r}.")
            return
        for name in sorted(drawn.keys() | kept.keys()):
            both = [paths[name] for paths in (drawn, kept) if name in paths and paths[name].is_file()]
            is_same = len({path.read_bytes() for path in both}) == 1 and len(both) == len((drawn, kept))
            yield Finding(is_same, f"{name} shows the raw numbers.")


def _check_pages(made: Mapping[str, Any], results: Mapping[str, Result], folder: Path) -> Iterator[Finding]:
    about = About(**made["about"])
    sections = [Section(about.arguments[name], result) for name, result in results.items()]
    for name, page in {"report.md": markdown_page, "report.html": html_page}.items():
        try:
            is_same = (folder / name).read_text(encoding="utf-8") == page(about, sections, made, folder)
        except OSError:  # the page or a picture is missing
            is_same = False
        yield Finding(is_same, f"{name} shows these results and this receipt.")
