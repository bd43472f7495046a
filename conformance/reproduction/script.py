"""What every script that shows a failure has: a name, a header, the functions that it imports, and its numbers.

A flat script needs torch and the submission or the library alone. Where a short one cannot show a failure, it replays
the scenario.
"""

import os
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
from conformance.submissions.contract import Function
from conformance.submissions.library import Library
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
    """What a script has to show: a check that the component of a submission failed, and what was wrong.

    Attributes:
        source: where the functions of the component are imported from.
        component: what failed.
        check: what it failed.
        message: what was wrong.
    """

    source: Location | Library
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
        """The name of its files, without a suffix."""
        return name_of_files(self.component.name, self.check.id)

    def called(self, wanted: Function | None) -> str:
        """Return the expression by which a script calls an adapter function; "" if there is none."""
        if wanted is None or isinstance(self.source, Location):
            return f"adapters.{wanted.name}" if wanted else ""
        named = self.source.functions.get(wanted.name)
        return named.role if named else ""

    def render(self, template: str, **more: Any) -> str:
        """Return a template filled in."""
        return _TEMPLATES.get_template(template).render(
            file=f"{self.name}.py",
            about=self._about,
            import_roots=list(self._import_roots),
            elsewhere=self._import_roots_elsewhere,
            imports=list(self._imports()),
            called={one.name: self.called(one) for one in self._functions},
            **more,
        )

    @property
    def _functions(self) -> tuple[Function, ...]:
        contract = self.component.contract
        return (*contract.functions, *(contract.wrapper.functions if contract.wrapper else ()))

    @property
    def _import_roots(self) -> tuple[str, ...]:
        return self.source.import_roots if isinstance(self.source, Location) else self.source.folders

    @property
    def _import_roots_elsewhere(self) -> list[str]:
        """The same in a copy of the submission on another machine, where the script is started in its folder."""
        if not isinstance(self.source, Location) or self.source.root is None:
            return []
        root = self.source.root
        return [os.path.relpath(one, root) for one in self.source.import_roots if Path(one).is_relative_to(root)]

    def _imports(self) -> Iterator[str]:
        """Yield the statements that import what the script calls."""
        if isinstance(self.source, Location):
            yield _import_line(self.source.module)
            return
        wanted = (self.source.functions.get(one.name) for one in dict.fromkeys(self._functions))
        for named in filter(None, wanted):
            yield from named.statements

    @property
    def _about(self) -> str:
        """Check, property and message, as text that may stand in a docstring."""
        about = f"{MARKER} {self.component.name} fails {self.check.id}. {self.check.property} {self.message}"
        about = about if isinstance(self.source, Location) else self.source.renamed(about)
        wrapped = textwrap.fill(textwrap.shorten(about, _ABOUT, placeholder=" ..."), _WIDTH)
        return wrapped.replace("\\", "\\\\").replace('"""', "'''")


def name_of_files(component: str, check: str) -> str:
    """Return the name of a check's files, without a suffix: for `trains[tied]` of `ddp`, `ddp-trains-tied`."""
    return "".join(c if c.isalnum() or c in "_.-" else "-" for c in f"{component}-{check}").strip("-")


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
