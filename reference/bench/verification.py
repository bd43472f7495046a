"""Whether a report follows from its raw numbers: everything is computed again and compared with its files."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference.bench import pictures, receipt
from reference.bench.registry import BENCHMARKS
from reference.bench.report_pages import About, Section, html_page, markdown_page
from reference.bench.result import Result


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
        again is not None and _as_json(receipt.shown(again)) == _as_json(receipt.shown(result)),
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


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _check_files(made: Mapping[str, Any], folder: Path) -> Iterator[Finding]:
    for name, expected in made["files"].items():
        path = folder / Path(name).name
        yield Finding(path.is_file() and receipt.hash_of_file(path) == expected, f"{name} is the receipt's.")


def _check_pictures(made: Mapping[str, Any], results: Mapping[str, Result], folder: Path) -> Iterator[Finding]:
    """Draw the pictures again. Another version of matplotlib would draw other files."""
    if not pictures.can_draw() or receipt.versions().get("matplotlib") != made["versions"].get("matplotlib"):
        yield Finding(is_right=False, text="Pictures are not drawn again: matplotlib differs.", is_note=True)
        return
    with tempfile.TemporaryDirectory() as scratch:
        for name, result in results.items():
            for stem, picture in BENCHMARKS[name].pictures(result.raw).items():
                drawn, kept = pictures.save(picture, Path(scratch, f"{stem}.svg")), folder / f"{stem}.svg"
                is_same = kept.is_file() and drawn.read_bytes() == kept.read_bytes()
                yield Finding(is_same, f"{kept.name} shows the raw numbers.")


def _check_pages(made: Mapping[str, Any], results: Mapping[str, Result], folder: Path) -> Iterator[Finding]:
    about = About(**made["about"])
    sections = [Section(about.arguments[name], result) for name, result in results.items()]
    for name, page in {"report.md": markdown_page, "report.html": html_page}.items():
        path = folder / name
        is_same = path.is_file() and path.read_text(encoding="utf-8") == page(about, sections, made["seal"], folder)
        yield Finding(is_same, f"{name} shows these results and this receipt.")
