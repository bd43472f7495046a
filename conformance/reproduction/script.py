"""What every script that shows a failure has: a name, a header, the submission that it imports, and its numbers.

A flat script needs torch and the submission alone. Where a short one cannot show a failure, it replays the scenario.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from conformance.checks.check import Check
from conformance.components.component import Component
from conformance.scenarios.plain_data import PlainData
from conformance.submissions.location import Location
from conformance.workload.numbers import Tensors

MARKER = "pytest-ddp:"  # how a script begins
MOST_LINES = 60  # besides its data
_MOST_NUMBERS = 2_000
_WIDTH = 116
_ABOUT = 3 * _WIDTH
_PACKAGE = Path(__file__).parents[1]
_TEMPLATES = Environment(
    loader=FileSystemLoader([_PACKAGE / "reproduction" / "templates", _PACKAGE / "components"]),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=StrictUndefined,
    autoescape=False,  # noqa: S701  Python is made, not HTML
)
_TEMPLATES.filters["keywords_of"] = lambda options: ", ".join(f"{name}={value!r}" for name, value in options.items())


class Reading:
    """Notes which fields of a scenario a template reads: what it has not read, its script cannot show."""

    def __init__(self, plain: PlainData) -> None:
        self._plain, self._read = plain, set[str]()

    def __getattr__(self, name: str) -> Any:
        self._read.add(name)
        return getattr(self._plain, name)

    def unread(self, *known: str) -> list[str]:
        """Return the fields that have another value than their default, and were not read; nor are `known` as well."""
        return [name for name in self._plain.unusual if name not in self._read.union(known)]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What a script has to show: a check that the component of a submission failed, and what was wrong."""

    location: Location
    component: Component
    check: Check
    message: str

    @property
    def own_template(self) -> str:
        """The template of the component's own; empty if it has none."""
        name = f"{self.component.name}/script.py.jinja"
        return name if name in _TEMPLATES.list_templates() else ""

    @property
    def name(self) -> str:
        """The name of its files, without a suffix: for a check `trains[tied]` of `ddp`, `ddp-trains-tied`."""
        kept = (c if c.isalnum() or c in "_.-" else "-" for c in f"{self.component.name}-{self.check.id}")
        return "".join(kept).strip("-")

    def render(self, template: str, **more: Any) -> str:
        """Return a template filled in."""
        return _TEMPLATES.get_template(template).render(
            file=f"{self.name}.py",
            about=self._about,
            import_roots=list(self.location.import_roots),
            import_line=_import_line(self.location.module),
            **more,
        )

    @property
    def _about(self) -> str:
        """Check, property and message, as text that may stand in a docstring."""
        about = f"{MARKER} {self.component.name} fails {self.check.id}. {self.check.property} {self.message}"
        wrapped = textwrap.fill(textwrap.shorten(about, _ABOUT, placeholder=" ..."), _WIDTH)
        return wrapped.replace("\\", "\\\\").replace('"""', "'''")


def is_readable(ranks: Sequence[Tensors]) -> bool:
    """Whether literal data would be so short that anybody might read it."""
    return sum(tensor.numel() for tensors in ranks for tensor in tensors.values()) <= _MOST_NUMBERS


def data_lines(name: str, ranks: Sequence[Tensors]) -> Iterator[str]:
    """Yield the lines of a list of the tensors that each rank has, by name."""
    yield f"{name} = [  # by rank"
    for tensors in ranks:
        yield "    {"
        for key, value in tensors.items():
            yield f'        "{key}": {literal(value)},'
        yield "    },"
    yield "]"


def lines_besides_data(text: str) -> int:
    """Return how many lines a script has that are no part of a list of literal data."""
    return len(re.sub(r"(?m)^\w+ = \[  # by rank\n( .*\n)*\]\n", "", text).splitlines())


def literal(value: torch.Tensor) -> str:
    """Return the expression that makes a tensor again, to the last bit."""
    if not value.numel():
        return f"torch.empty({tuple(value.shape)}, dtype={value.dtype})"
    numbers = re.sub("inf|nan", r'float("\g<0>")', str(value.tolist()))
    return f"tensor({numbers}, dtype={value.dtype})"


def _import_line(module: str) -> str:
    package, _, name = module.rpartition(".")
    renamed = "" if name == "adapters" else " as adapters"
    return f"from {package} import {name}{renamed}" if package else f"import {name}{renamed}"
