"""A submission's wrappers, to be measured beside the references: found and imported on the ranks.

`conformance.submissions` finds the adapters, as for `pytest-ddp-grade`. Here nothing stands between the submission and
torch, because this is for measuring. The grader judges.
"""

import importlib
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import SGD, Optimizer

from reference.bench.ranks import gather
from reference.communication.process_group import current_device

if TYPE_CHECKING:
    from conformance.submissions.location import Location

_SUFFIX = " (submission)"
_PROBED_MB = 1.0  # the size of buckets with which a wrapper is tried


class SubmissionError(RuntimeError):
    """A submission cannot be measured. The message says which one, why and what to do."""


@dataclass(frozen=True)
class Names:
    """The names of a wrapper's adapter functions.

    Attributes:
        name: `get_NAME` wraps, `NAME_on_train_batch_start` and `NAME_on_after_backward` are called in a step.
        takes_bucket_size: whether the function that wraps takes the bucket size too.
    """

    name: str
    takes_bucket_size: bool = False


WRAPPERS = {
    "naive": Names("naive_ddp"),
    "flat": Names("flat_ddp"),
    "overlapped": Names("ddp_individual_parameters"),
    "bucketed": Names("ddp_bucketed", takes_bucket_size=True),
    "ddp": Names("ddp"),
}
FSDP = Names("fsdp")


def submitted(name: str) -> str:
    """The name under which a submission's wrapper is measured."""
    return name + _SUFFIX


def is_submitted(name: str) -> bool:
    """Whether a contestant is a submission's."""
    return name.endswith(_SUFFIX)


def kind(name: str) -> str:
    """The name without the mark of a submission."""
    return name.removesuffix(_SUFFIX)


@dataclass(frozen=True)
class Submission:
    """The adapters of a submission, or of the references.

    Attributes:
        adapters: the module with the functions.
        failed: functions that raised an exception when they were tried, with its text. They are not measured.
    """

    adapters: ModuleType
    failed: dict[str, str] = field(default_factory=dict)

    def wrappers(self) -> list[str]:
        """The names in `WRAPPERS` that are implemented. A collective: each is tried on a small layer."""
        return [name for name, names in WRAPPERS.items() if self.implements(names)]

    def implements(self, names: Names) -> bool:
        """Whether a wrapper is implemented. A collective."""
        return self._works(f"get_{names.name}", lambda: self.wrap(names, _small_layer(), _PROBED_MB))

    def implements_sharded_optimizer(self) -> bool:
        """Whether the sharded optimizer is implemented. A collective."""
        return self._works("get_sharded_optimizer", lambda: self.shard(_small_layer(), SGD, lr=0.1))

    def wrap(self, names: Names, module: nn.Module, bucket_mb: float | None) -> Any:
        """The module as the submission wraps it."""
        size = [bucket_mb] if names.takes_bucket_size else []
        return getattr(self.adapters, f"get_{names.name}")(module, *size)

    def hook(self, names: Names, when: str) -> Callable[[Any, Optimizer], object]:
        """What the submission wants to be called with the wrapped model and the optimizer; else nothing."""
        hook: Callable[[Any, Optimizer], object] = getattr(self.adapters, f"{names.name}_{when}", _nothing)
        return hook

    def shard(self, module: nn.Module, optimizer: type[Optimizer], **options: Any) -> Optimizer:
        """The submission's sharded optimizer of a module's parameters."""
        made: Optimizer = self.adapters.get_sharded_optimizer(module.parameters(), optimizer, **options)
        return made

    def _works(self, function: str, call: Callable[[], object]) -> bool:
        """Whether a function works on every rank. The assignment's template raises NotImplementedError."""
        if not hasattr(self.adapters, function):
            return False
        outcomes = gather(_outcome(call))
        if reasons := [outcome for outcome in outcomes if isinstance(outcome, str)]:
            self.failed[function] = reasons[0]
        return all(outcome is True for outcome in outcomes)


def _small_layer() -> nn.Module:
    return nn.Linear(2, 2).to(current_device())


def _outcome(call: Callable[[], object]) -> bool | str:
    """Whether what is called is implemented; the exception's text if it raised any other one."""
    try:
        call()
    except NotImplementedError:
        return False
    except Exception as error:  # noqa: BLE001  # a submission may raise anything; the rest of it is measured
        return f"{type(error).__name__}: {error}"
    return True


def failed_functions(path: str | None) -> dict[str, str]:
    """The functions of a submission that raised an exception when this process tried them, with its text."""
    return {} if path is None else dict(load_submission(path).failed)


def about_failed(failed: Mapping[str, str]) -> list[str]:
    """A sentence for each of these functions."""
    return [
        f"{function} of the submission is not measured: tried on a small layer, it raised {reason}."
        for function, reason in failed.items()
    ]


def submission_path(given: str) -> str:
    """The type of the option `--submission`: refuses what is no submission before ranks are started."""
    try:
        _find(given)
    except SubmissionError as error:
        raise ArgumentTypeError(str(error)) from error
    return given


@cache
def load_submission(path: str) -> Submission:
    """Import a submission's adapters, once in a process.

    Args:
        path: a folder, a file or an importable module, as `pytest-ddp-grade` takes it.

    Raises:
        SubmissionError: it is not there, or it cannot be imported.
    """
    location = _find(path)
    _forget(location.module)
    sys.path[:0] = [root for root in location.import_roots if root not in sys.path]
    try:
        return Submission(importlib.import_module(location.module))
    except ImportError as error:
        raise SubmissionError(
            f"--submission {path}: {location.file or location.module} cannot be imported ({error}). Install what it "
            "needs in this Python"
        ) from error


def _find(path: str) -> "Location":
    from conformance.submissions.location import locate  # noqa: PLC0415  # needed for a submission only
    from pytest_ddp.errors import UsageError  # noqa: PLC0415

    try:
        return locate(path)
    except UsageError as error:
        raise SubmissionError(str(error)) from error


def _forget(module: str) -> None:
    """Forget modules that have the adapters' name, such as another `tests`."""
    package = module.partition(".")[0]
    for known in [known for known in sys.modules if known == package or known.startswith(f"{package}.")]:
        del sys.modules[known]


def _nothing(*_: object) -> None:
    """What to call if a submission wants nothing to be called."""
