"""Pictures in text: what happens over time, and what each rank holds. Each fits a terminal of 80 columns."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_COLOURS = (
    (r"\[(backward|forward|layer|micro)[^\]]*\]", "cyan"),
    (r"\[(all-reduce|all-gather|reduce-scatter|broadcast|wait)[^\]]*\]", "green"),
    (r"\[(step|save|load)[^\]]*\]", "yellow"),
)


def over_time(*rows: tuple[str, str], says: str = "") -> RenderableType:
    """Draw rows of what happens, time from the left to the right; what is in brackets lasts as long as it is wide."""
    lines = Table.grid(padding=(0, 2, 0, 0))
    for name, happens in rows:
        drawn = Text(happens, no_wrap=True)
        for pattern, colour in _COLOURS:
            drawn.highlight_regex(pattern, colour)
        lines.add_row(Text(name, "bold", no_wrap=True), drawn)
    lines.add_row("", Text("time ->", "dim"))
    return _with_words(lines, says)


def held(head: str, *rows: str, says: str = "") -> RenderableType:
    """Draw a table, for example of what each rank holds; `|` separates the cells of a row."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in _cells(head):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, _cells(row)))
    return _with_words(table, says)


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("|")]


def _with_words(picture: RenderableType, says: str) -> RenderableType:
    return Group(picture, Text(says)) if says else picture
