"""The report's two pages, Markdown and HTML, made of results, the receipt, and the pictures in it alone."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from reference.bench.result import Result, text

_STYLE = """
body { font-family: sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; line-height: 1.5; color: #222; }
table { border-collapse: collapse; margin: 1em 0; font-size: 90%; }
th, td { border-bottom: 1px solid #ddd; padding: 0.25em 0.8em; text-align: right; }
th { vertical-align: bottom; }
td.text, th.text { text-align: left; }
img { max-width: 100%; }
code { background: #f3f3f3; padding: 0 0.2em; overflow-wrap: anywhere; }
"""


Receipt = Mapping[str, Any]
"""What `receipt.make` made: its seal, and the names of all files."""


@dataclass(frozen=True)
class Section:
    """A result, and the arguments of the command that measured it."""

    arguments: str
    result: Result


@dataclass(frozen=True)
class About:
    """What a report says about its making.

    Attributes:
        made: date and time, ISO 8601.
        minutes: the time that all benchmarks had.
        arguments: of each benchmark's command.
        missing: why a benchmark is not in the report, by its name.
    """

    made: str
    minutes: float
    arguments: Mapping[str, str]
    missing: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """The attributes as JSON can hold them."""
        return asdict(self)


def markdown_page(about: About, sections: Sequence[Section], receipt: Receipt, folder: Path) -> str:
    """The report in Markdown; pictures are links to the receipt's files in the folder."""
    parts = ["# Benchmarks of distributed training", *_introduction(about, sections, receipt["seal"])]
    for section in sections:
        parts.append(section.result.to_markdown().strip())
        parts += [f"![{picture.stem}]({picture.name})" for picture in pictures_of(section.result, receipt, folder)]
        parts.append(f"`{command(section)}`")
    return "\n\n".join(parts) + "\n"


def html_page(about: About, sections: Sequence[Section], receipt: Receipt, folder: Path) -> str:
    """The report as one HTML file that holds its pictures.

    Raises:
        OSError: a picture cannot be read.
    """
    paragraphs = "".join(f"<p>{escape(line)}</p>\n" for line in _introduction(about, sections, receipt["seal"]))
    body = "".join(_html_section(section, receipt, folder) for section in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>Benchmarks of distributed training</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>Benchmarks of distributed training</h1>\n{paragraphs}{body}</body>\n</html>\n"
    )


def pictures_of(result: Result, receipt: Receipt, folder: Path) -> list[Path]:
    """The pictures of a result in a folder that are in the receipt, in the order of their names."""
    named = [folder / Path(name).name for name in sorted(receipt["files"]) if name.endswith(".svg")]
    return [path for path in named if f"{path.stem}-".startswith(f"{result.name}-")]


def command(section: Section) -> str:
    """The command line that measures a section."""
    return f"python -m reference.bench {section.result.name} {section.arguments}".strip()


def _introduction(about: About, sections: Sequence[Section], seal: str) -> list[str]:
    lines = [f"Made on {about.made}, in a time of {about.minutes:g} minutes.", *_machine(sections)]
    lines += [f"{name} is missing: {reason}." for name, reason in about.missing.items()]
    lines.append(f"Receipt {seal}. To check it: python -m reference.bench report --verify receipt.json")
    return lines


def _machine(sections: Sequence[Section]) -> list[str]:
    if not sections:
        return []
    found = sections[0].result.environment
    gpus = ", ".join(found["gpus"]) or "no GPU"
    return [
        f"Machine: {found['processor']}, {found['cores']} cores, {found['memory_gb']:.0f} GB of memory, {gpus}.",
        f"Software: {found['system']}; Python {found['python']}, torch {found['torch']}. Seed: {found['seed']}.",
    ]


def _html_section(section: Section, receipt: Receipt, folder: Path) -> str:
    result = section.result
    pictures = "".join(
        f'<p><img alt="{escape(path.stem)}" src="data:image/svg+xml;base64,'
        f'{base64.b64encode(path.read_bytes()).decode()}"></p>\n'
        for path in pictures_of(result, receipt, folder)
    )
    sentences = escape(" ".join(result.sentences))
    return (
        f"<h2>{escape(result.title)}</h2>\n{_html_table(result)}<p>{sentences}</p>\n{pictures}"
        f"<p><code>{escape(command(section))}</code></p>\n"
    )


def _html_table(result: Result) -> str:
    is_text = [any(isinstance(row[index], str) for row in result.rows) for index in range(len(result.columns))]
    heads = _html_row("th", [column.heading for column in result.columns], is_text)
    rows = "".join(_html_row("td", [text(value) for value in row], is_text) for row in result.rows)
    return f"<table>\n{heads}{rows}</table>\n"


def _html_row(tag: str, cells: Sequence[str], is_text: Sequence[bool]) -> str:
    kinds = [" class=text" if left else "" for left in is_text]
    shown = (f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=True))
    return f"<tr>{''.join(shown)}</tr>\n"
