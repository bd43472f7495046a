"""Folders that ranks fill, which are removed whatever is in them."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def temporary_folder(place: Path | None = None) -> Iterator[str]:
    """Give a new folder, below `place` or where temporary files are."""
    made = tempfile.TemporaryDirectory(prefix="conformance-", dir=place, ignore_cleanup_errors=True)
    try:
        yield made.name
    finally:
        try:
            made.cleanup()
        except RecursionError:  # a thousand folders in one another
            subprocess.run(["rm", "-rf", "--", made.name], stderr=subprocess.DEVNULL, check=False)  # noqa: S607
