"""Right code that is unusual, and how it is submitted."""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from evidence import code_of, digest

from conformance.components.registry import COMPONENTS
from conformance.grading.report import Report

_MODULES = Path(__file__).parents[1] / "conformance" / "controls"
CONTROLS = {path.stem: path.read_text(encoding="utf-8") for path in _MODULES.glob("*.py")}


class Way(NamedTuple):
    """A class or function of a control module, graded as a component; it may fail the checks in `not_held_to`."""

    module: str
    name: str
    component: str
    not_held_to: Collection[str] = ()

    def __str__(self):
        return f"{self.name} as {self.component}"

    @property
    def adapters(self) -> str:
        """The text of the adapters that submit it."""
        asked = COMPONENTS[self.component].contract
        given = ", ".join([*asked.get.parameters, *(["**kwargs"] if asked.get.keywords else [])])
        lines = [f"from {self.module} import {self.name}", f"def {asked.get}: return {self.name}({given})"]
        if self.component == "fsdp":
            lines.append(
                f"from {self.module} import finish as fsdp_on_after_backward, whole as fsdp_gather_full_params"
            )
        if asked.after_backward:
            lines.append(f"def {asked.after_backward}: ddp_model.finish()")
        if asked.batch_start:
            lines.append(f"def {asked.batch_start}: pass")
        return "\n".join(lines)

    @property
    def key(self) -> str:
        """A digest of its code and of the checks that it is not held to."""
        return digest([self.adapters, *map(code_of, _sources(self.module)), *sorted(self.not_held_to)])

    @property
    def cells(self) -> tuple[str, ...]:
        """What the table of ways says of it."""
        return f"`{self.name}`", ", ".join(f"`{check}`" for check in sorted(self.not_held_to))


def _sources(module: str) -> Iterator[str]:
    """Yield the source of a control module and of those that it imports."""
    yield CONTROLS[module]
    for imported in re.findall(r"^from (\w+) import", CONTROLS[module], re.MULTILINE):
        if imported in CONTROLS:
            yield from _sources(imported)


def accusations(way: Way, report: Report) -> dict[str, str]:
    """Return the messages of failed checks, by check, except those that the way is known to lack."""
    (graded,) = report.components
    failed = [check for check in graded.checks if check.status in {"failed", "error"}]
    return {check.id: check.message for check in failed if check.id not in way.not_held_to}
