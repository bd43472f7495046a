"""Limits on the text that is sent and shown: a text that is too long keeps its beginning and its end."""

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
    """Return the first line of `text`, cut to `LINE_LIMIT` characters."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= LINE_LIMIT else f"{line[:LINE_LIMIT]}..."


def bounded(value: Any, limit: int = TEXT_LIMIT) -> Any:
    """Return plain data (lists, dicts, strings, ...) with every string limited.

    The lines that a pytest report has under "lines" are limited together, as one text. Any other list keeps its length:
    it may be a pair of name and value.
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
