"""Writes a standalone script that shows what a part of the training loop does wrong."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import torch

from conformance.checks.trial import CaseTrial
from conformance.components.checkpoint.case import CheckpointCase
from conformance.components.evaluation.case import EvaluationCase
from conformance.components.evaluation.numbers import OTHER_LABELS
from conformance.components.fsdp.assertions import SINGLE
from conformance.components.fsdp.case import FsdpCase
from conformance.components.fsdp.memory import AT_ONCE, LEFT, share, two_whole
from conformance.components.fsdp.precision import EXACT, HALF
from conformance.components.gradient_accumulation.case import AccumulationCase
from conformance.components.gradient_accumulation.numbers import LEARNING_RATE, MOMENTUM, SCALE, WEIGHT_DECAY
from conformance.components.registry import COMPONENTS
from conformance.components.sync_batchnorm import far_from_zero
from conformance.components.sync_batchnorm.case import SyncBatchNormCase
from conformance.components.sync_batchnorm.numbers import CHANNELS
from conformance.reproduction.script import Script
from conformance.scenarios.case import Case
from conformance.scenarios.layers import Again, layer_as_code
from conformance.workload.averaging_wrapper import Replicated, unsymmetric_loss
from conformance.workload.checkpoint_training import DECAY
from conformance.workload.cs336_layers import of_the_assignment
from conformance.workload.disk_limit import full_disk
from conformance.workload.eval_model import Classifier
from conformance.workload.live_memory import LiveMemory
from conformance.workload.models import GAIN
from conformance.workload.modules import SmoothNorm

_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class PartReproduction(Script):
    """A script that asks a part of the training loop what a training loop would.

    Attributes:
        case: the case on which the check failed.
    """

    case: Any

    def text(self) -> str:
        """Return the script."""
        worlds = COMPONENTS[self.component].numbers(
            self.case, self.seed
        )  # a rank is given the same in each: the largest holds all
        rounding = _rounding(CaseTrial(self.case, worlds, []))
        return self.render(
            f"parts/{self.component}.py.jinja",
            s=self.case,
            shows_apart=self.check.id == "one_micro_batch_at_a_time",
            world_size=self.case.world_size,
            torchrun=len(self.case.worlds) == 1,
            numbers=[{name: _literal(value) for name, value in given.items()} for given in max(worlds, key=len)],
            verdict="wrong(ranks)",
            tolerance=rounding or _TOLERANCE,
            floor=1 if rounding else 1000,
            **_ABOUT.get(type(self.case), _nothing)(self.case),
        )


def _rounding(trial: CaseTrial) -> float | None:
    """Return what share of the largest update, or of a norm's output, is put down to rounding outside of float64."""
    case = trial.case
    if isinstance(case, SyncBatchNormCase) and case.far:
        return far_from_zero.share(trial)
    if not isinstance(case, FsdpCase) or case.dtype == "float64":
        return None
    return HALF if case.half else SINGLE


def _nothing(_: Any) -> dict[str, Any]:
    return {}


def _accumulation(case: AccumulationCase) -> dict[str, Any]:
    rates = {"learning_rate": LEARNING_RATE, "momentum": MOMENTUM, "decay": WEIGHT_DECAY, "scale": SCALE}
    sources = (inspect.getsource(one).rstrip() for one in (unsymmetric_loss, Replicated))
    micro_batches = [case.micro(step) for step in range(case.steps)]
    return {"sources": "\n\n\n".join(sources), "micro_batches": micro_batches, **rates}


def _sync_batchnorm(case: SyncBatchNormCase) -> dict[str, Any]:
    lengths = (3 + rank for rank in range(case.world_size))
    values = tuple(size * length for size, length in zip(case.sizes, lengths, strict=True))
    places = ["0.again.", case.prefix] if case.shared else [case.prefix]
    return {"channels": CHANNELS, "sizes": values if case.stretched else case.sizes, "places": places}


def _fsdp(case: FsdpCase) -> dict[str, Any]:
    spec = case.scenario.model
    sources: tuple[Any, ...] = (SmoothNorm, of_the_assignment, *([LiveMemory] if case.weighed else []))
    again = next(((at, layer.layer) for at, layer in enumerate(spec.layers) if isinstance(layer, Again)), None)
    return {
        "again": again,
        "unused": spec.inputs,
        "layers": ", ".join(starmap(layer_as_code, zip(spec.layers, spec.widths, strict=False))),
        "frozen": spec.frozen,
        "optimizer": case.scenario.optimizer,
        "gain": f", gain={GAIN}" if case.keyword else "",
        "share": share(case),
        "two_whole": two_whole(case),
        "at_once": AT_ONCE,
        "left": LEFT,
        "exact": EXACT,
        "rounded": case.dtype == "float32",
        "sources": "\n\n\n".join(inspect.getsource(one).rstrip() for one in sources),
    }


_ABOUT: dict[type[Case], Callable[[Any], dict[str, Any]]] = {
    AccumulationCase: _accumulation,
    CheckpointCase: lambda _: {"decay": DECAY, "sources": inspect.getsource(full_disk).rstrip()},
    EvaluationCase: lambda _: {"other_labels": OTHER_LABELS, "sources": inspect.getsource(Classifier).rstrip()},
    FsdpCase: _fsdp,
    SyncBatchNormCase: _sync_batchnorm,
}


def _literal(value: torch.Tensor) -> str:
    """Return the expression that makes a tensor again, to the last bit."""
    if not value.numel():
        return f"torch.empty({tuple(value.shape)}, dtype={value.dtype})"
    return f"tensor({value.tolist()}, dtype={value.dtype})"
