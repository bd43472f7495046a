"""A right implementation that is unusual, and how it is submitted."""

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from conformance.components.registry import COMPONENTS
from conformance.grading.report import Report

_MODULES = Path(__file__).parents[1] / "conformance" / "controls"
CONTROLS = {path.stem: path.read_text(encoding="utf-8") for path in _MODULES.glob("*.py")}


class Way(NamedTuple):
    """A class or function of a control module, as a component; `lacks` has the checks that ask for more."""

    module: str
    name: str
    component: str
    lacks: Collection[str] = ()

    def __str__(self):
        return f"{self.name} as {self.component}"

    @property
    def adapters(self) -> str:
        """The adapters that submit it."""
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


def accusations(way: Way, report: Report) -> dict[str, str]:
    """Return what a grading says against a way, by check, but for what the way is known to lack."""
    (graded,) = report.components
    failed = [check for check in graded.checks if check.status in {"failed", "error"}]
    return {check.id: check.message for check in failed if check.id not in way.lacks}
