"""What every standalone script that shows a failure has: a name, a place, and the submission that it imports."""

import textwrap
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from conformance.checks.check import Check
from conformance.execution.fork_servers import HASH_SEEDS
from conformance.submissions.location import Location

_WIDTH = 110
TEMPLATES = Environment(
    loader=PackageLoader("conformance.reproduction"),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=StrictUndefined,
    autoescape=False,  # noqa: S701  Python is made, not HTML
)

TEMPLATES.filters["items_of"] = lambda options: ", ".join(f'"{name}": {value!r}' for name, value in options.items())
TEMPLATES.filters["keywords_of"] = lambda options: ", ".join(f"{name}={value!r}" for name, value in options.items())


@dataclass(frozen=True, kw_only=True)
class Script(ABC):
    """What a script has to show.

    Attributes:
        location: the submission.
        component: the component that failed.
        check: the check that failed.
        seed: the integer that the numbers derive from.
        message: what was wrong.
        stubbed: what was used in place of something absent.
        hash_apart: whether its ranks must not agree on `hash`.
    """

    location: Location
    component: str
    check: Check
    seed: int
    message: str
    stubbed: frozenset[str] = frozenset()
    hash_apart: bool = False

    @property
    def file(self) -> str:
        """The script's name."""
        return f"{self.component}-{self.check.id}.py"

    def write(self, folder: Path) -> Path:
        """Write it as `<component>-<check>.py` in the submission's subfolder of a folder; return its path."""
        path = folder / self.location.subfolder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text(), encoding="utf-8")
        return path

    @abstractmethod
    def text(self) -> str:
        """Return the script."""

    def render(self, template: str, **more: Any) -> str:
        """Return a template filled in with what every script has, and more."""
        return TEMPLATES.get_template(template).render(
            component=self.component,
            check=self.check.id,
            property=self.check.property,
            message=_as_docstring(self.message),
            file=self.file,
            hash_seeds=HASH_SEEDS if self.hash_apart else (),
            import_roots=list(self.location.import_roots),
            import_line=_import_line(self.location.module),
            stubs=sorted(name.removeprefix("package ") for name in self.stubbed if name.startswith("package ")),
            stubbed_metadata=any(name.startswith("version of") for name in self.stubbed),
            stubbed_cuda=any(name.startswith("torch.cuda") for name in self.stubbed),
            **more,
        )


def _import_line(module: str) -> str:
    package, _, name = module.rpartition(".")
    renamed = "" if name == "adapters" else " as adapters"
    return f"from {package} import {name}{renamed}" if package else f"import {name}{renamed}"


def _as_docstring(message: str) -> str:
    """Return text that may stand in a docstring, its long lines wrapped."""
    lines = message.replace("\\", "\\\\").replace('"""', "'''").splitlines()
    return "\n".join(textwrap.fill(line, _WIDTH, subsequent_indent="  ") if line else "" for line in lines)
