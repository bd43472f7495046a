"""What a rank needs to start its pytest session."""

from dataclasses import dataclass
from typing import Any

from pytest_ddp.settings import Settings


@dataclass(frozen=True)
class SessionStart:
    """What a rank needs to start a pytest session like the controller's."""

    args: list[str]
    options: dict[str, Any]
    cwd: str
    basetemp: str
    terminal: str | None
    workerinput: dict[str, Any]
    settings: Settings
    markers: list[str]
    coverage: str | None
