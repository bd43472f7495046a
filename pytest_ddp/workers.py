"""Between the workers of a pytest-xdist run: the folder through which they share cores and GPUs."""

import shutil
from pathlib import Path
from typing import Any

import pytest

_FOLDER = "ddp_slots"


def shared_folder(config: pytest.Config) -> Path | None:
    """Return the folder that this process, a worker, shares with the others; None when it is no worker."""
    folder = getattr(config, "workerinput", {}).get(_FOLDER)
    return None if folder is None else Path(folder)


class Workers:
    """Hooks of the process that starts the workers: makes the folder known to them, and removes it at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._folder: Path | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker which folder it is."""
        self._folder = self._config._tmp_path_factory.getbasetemp() / "ddp-slots"  # type: ignore[attr-defined]  # noqa: SLF001  no public way
        node.workerinput[_FOLDER] = str(self._folder)

    def pytest_unconfigure(self) -> None:
        """Remove the folder: every worker has ended."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
