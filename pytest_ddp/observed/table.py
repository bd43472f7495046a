"""Text in columns."""

from collections.abc import Collection, Sequence

_WIDEST = 60  # characters


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """Return a line for the head and for each row; columns without content are left out.

    Args:
        head: the names of the columns.
        rows: a cell for each column; very long cells lose their end.
        right: the columns that are aligned to the right.
    """
    columns = [_column(name, [row[index] for row in rows], name in right) for index, name in enumerate(head)]
    shown = [column for column in columns if any(cell.strip() for cell in column[1:])]
    return ["  ".join(cells).rstrip() for cells in zip(*shown, strict=True)]


def _column(name: str, cells: Sequence[str], to_the_right: bool) -> list[str]:  # noqa: FBT001  internal
    cut = [name, *(cell if len(cell) <= _WIDEST else f"{cell[: _WIDEST - 3]}..." for cell in cells)]
    width = max(map(len, cut))
    return [cell.rjust(width) if to_the_right else cell.ljust(width) for cell in cut]
