"""Cases: what a component of the training loop is asked once, as plain data; the counterpart of a scenario.

A case prints as Python that evaluates to itself, and saves as JSON. Its numbers derive from `seed` and a run's secret.
Nothing here imports torch.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from conformance.components.fsdp.case import FsdpCase
from conformance.scenarios.case import Case
from conformance.scenarios.scenario import Scenario, to_json


@dataclass(frozen=True, repr=False)
class OverheadCase(Case):
    """One gradient size, bandwidth, overhead per call and number of buckets: two or more, or if `single`, one."""

    single: bool = False


@dataclass(frozen=True, repr=False)
class SamplerCase(Case):
    """A data set that ranks share out.

    Attributes:
        length: its samples.
        shuffle, drop_last: as a sampler is told.
        epochs: those that one sampler is iterated over, in this order; None where `set_epoch` is not called before.
        replicas: a number of replicas, all of whose shares every rank asks for besides; 0 for none.
        later: whether a further sampler is made at what looks like a later time, in another process.
        left: whether an iteration in the first of the epochs, before these, is left after one sample.
    """

    length: int = 4
    shuffle: bool = True
    drop_last: bool = False
    epochs: tuple[int | None, ...] = (0, 1, 0)
    replicas: int = 0
    later: bool = False
    left: bool = False

    @property
    def last_epoch(self) -> int:
        """The last epoch that is set; 0 if none is."""
        return next((epoch for epoch in reversed(self.epochs) if epoch is not None), 0)


@dataclass(frozen=True, repr=False)
class EvaluationCase(Case):
    """A model that is evaluated on batches.

    Attributes:
        sizes: per rank, the number of samples of each of its batches.
        again: whether another model is evaluated afterwards, one in evaluation mode, with gradients turned off.
        half: whether model and inputs are in bfloat16.
    """

    sizes: tuple[tuple[int, ...], ...] = ((1,),)
    again: bool = False
    half: bool = False


@dataclass(frozen=True, repr=False)
class GeneratorCase(Case):
    """Generators for the data loaders of all ranks, from one seed."""


@dataclass(frozen=True, repr=False)
class AccumulationCase(Case):
    """Optimizer steps, each over several micro-batches.

    Attributes:
        steps: optimizer steps.
        micro_batches: per step.
        shrinking: whether the last step has one fewer, as at the end of an epoch.
        samples: of each micro-batch, on each rank.
        scaled: whether a gradient scaler is given.
        overflow: a rank whose gradients of step 0 are infinite; -1 for none.
        at: where the wrapper averages, or decides to: in `backward`, in `forward` as torch's own, or at `finish`.
    """

    steps: int = 1
    micro_batches: int = 2
    samples: int = 1
    scaled: bool = False
    overflow: int = -1
    at: Literal["backward", "forward", "finish"] = "backward"
    shrinking: bool = False

    def micro(self, step: int) -> int:
        """Return how many micro-batches a step has."""
        return self.micro_batches - (self.shrinking and step == self.steps - 1)


@dataclass(frozen=True, repr=False)
class SyncBatchNormCase(Case):
    """A batch norm that is converted, trained and evaluated.

    Attributes:
        sizes: samples per batch, of each rank.
        dimensions: of the input: 2 for (N, C), 3 for (N, C, L), 4 for (N, C, H, W), 5 for (N, C, D, H, W).
        steps: forwards and backwards.
        eps, momentum, affine, tracked: options of the norm; `tracked` is `track_running_stats`.
        frozen: whether weight and bias do not require gradients.
        evaluating: whether the model is in evaluation mode when it is converted, and stays in it.
        bare: whether the model is the norm alone.
        at_once: whether all forwards come before the first backward.
        far: whether norm and inputs are in float32, and the inputs' mean is thousands of times their spread.
        transposed: whether inputs lie in memory in the reverse order of their dimensions.
        stretched: whether each rank's inputs, of three dimensions, are longer than those of the rank before.
        first: whether the norm comes first in the model: its inputs need no gradient.
        without_gradients: whether steps are forwards alone, with gradients turned off.
        shared: whether the model holds the norm at a second place, too, where it is not called.
    """

    sizes: tuple[int, ...] = (2,)
    dimensions: int = 2
    steps: int = 1
    eps: float = 1e-5
    momentum: float | None = 0.1
    affine: bool = True
    tracked: bool = True
    frozen: bool = False
    evaluating: bool = False
    bare: bool = False
    at_once: bool = False
    far: bool = False
    transposed: bool = False
    stretched: bool = False
    first: bool = False
    without_gradients: bool = False
    shared: bool = False

    @property
    def state(self) -> tuple[str, ...]:
        """The names in the norm's `state_dict`."""
        tracked = ("running_mean", "running_var", "num_batches_tracked")
        return ("weight", "bias") * self.affine + tracked * self.tracked

    @property
    def prefix(self) -> str:
        """What comes before them in the model's."""
        return "" if self.bare else "1.0."


@dataclass(frozen=True, repr=False)
class CheckpointCase(Case):
    """A training that is saved by one world and goes on in another.

    Attributes:
        load_world_size: ranks that load.
        before, after: steps before saving and after loading.
        scaled: whether there is a gradient scaler.
        apart: whether each rank is given a path in a folder of its own; rank 0's is loaded.
        failing: whether a second save, to the same path, fails half way.
        again: whether there was a save to the same path before, at the beginning of training.
        unscaled: whether training goes on without the gradient scaler.
        goes_on: whether the training that was saved goes on, too.
        other_disk: whether the path is on another disk than temporary files are.
        later: whether what comes of training on is saved too, to a path that differs in its suffix alone.
        reloaded: whether the world that loads saves to the same path at the end, and loads that again.
    """

    load_world_size: int = 1
    before: int = 2
    after: int = 2
    scaled: bool = True
    apart: bool = False
    failing: bool = False
    again: bool = False
    unscaled: bool = False
    goes_on: bool = False
    other_disk: bool = False
    later: bool = False
    reloaded: bool = False

    @property
    def worlds(self) -> tuple[int, ...]:
        """The world that saves, and the one that loads."""
        return (self.world_size, self.load_world_size)


SIMPLEST: dict[str, Case] = {
    "overhead_model": OverheadCase(),
    "distributed_sampler": SamplerCase(),
    "evaluation": EvaluationCase(),
    "loader_generator": GeneratorCase(),
    "gradient_accumulation": AccumulationCase(),
    "sync_batchnorm": SyncBatchNormCase(),
    "checkpoint": CheckpointCase(),
    "fsdp": FsdpCase(),
}
_KINDS = {type(case).__name__: type(case) for case in SIMPLEST.values()}


def as_json(drawn: Scenario | Case) -> dict[str, Any]:
    """Return a scenario or a case as what `json.dumps` takes."""
    return to_json(drawn) if isinstance(drawn, Scenario) else {"case": type(drawn).__name__, **asdict(drawn)}


def as_text(drawn: Scenario | Case) -> str:
    """Return a scenario or a case as JSON text, which no other one has."""
    return drawn.text if isinstance(drawn, Scenario) else json.dumps(as_json(drawn))


def case_from_json(plain: dict[str, Any]) -> Case:
    """Return the case that `as_json` made, also after a trip through JSON text.

    Raises:
        KeyError, TypeError: the data is no case.
    """
    rest = {name: _tuples(value) for name, value in plain.items() if name != "case"}
    return _KINDS[plain["case"]](**rest)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
