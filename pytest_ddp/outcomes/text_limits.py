"""Bounds what travels and what is shown: of a text too long, the beginning and the end."""

from typing import Any

TEXT_LIMIT = 2**16
LINE_LIMIT = 1000


def both_ends(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return `text`, without its middle if it has more than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def one_line(text: str) -> str:
    """Return the first line of `text`, cut if it is very long."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= LINE_LIMIT else f"{line[:LINE_LIMIT]}..."


def bounded(value: Any, limit: int = TEXT_LIMIT) -> Any:
    """Return plain data (lists, dicts, strings, ...) in which every string is bounded.

    So is, as one text, what a dict has under "lines", as pytest's reports have it. Other lists of strings keep their
    length: a name with its value.
    """
    if isinstance(value, str):
        return both_ends(value, limit)
    if isinstance(value, dict):
        return {key: _lines(part, limit) if key == "lines" else bounded(part, limit) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [bounded(part, limit) for part in value]
    return value


def _lines(value: Any, limit: int) -> Any:
    if not isinstance(value, list | tuple) or not all(isinstance(line, str) for line in value):
        return bounded(value, limit)
    return both_ends("\n".join(value), limit).split("\n") if sum(map(len, value)) > limit else list(value)
