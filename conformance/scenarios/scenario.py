"""A scenario: one model, one optimizer and one training schedule, as plain data.

It prints as Python that evaluates to itself, saves as JSON, and replays without Hypothesis. Nothing here imports torch.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias

from conformance.scenarios.drawn import Drawn
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.plain_data import PlainData

MIB = 2**20  # bytes

Option: TypeAlias = float | bool | str | tuple[float, float]
Options: TypeAlias = dict[str, Option]
OptimizerKind: TypeAlias = Literal[
    "SGD", "AdamW", "Adam", "Adagrad", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"
]

Conversion: TypeAlias = Literal["nothing", "float64", "channels_last"]


@dataclass(frozen=True, repr=False)
class Group(PlainData):
    """Parameters, by name, with options of their own."""

    parameters: tuple[str, ...]
    options: Options


@dataclass(frozen=True, repr=False)
class OptimizerSpec(PlainData):
    """A torch optimizer: its class, its options, and its parameter groups (none: one group of every parameter).

    With `generators`, groups, later ones too, come with a generator of parameters, as `module.parameters()` gives.
    """

    kind: OptimizerKind = "SGD"
    options: Options = field(default_factory=lambda: {"lr": 0.1})
    groups: tuple[Group, ...] = ()
    generators: bool = False


@dataclass(frozen=True, repr=False)
class SetOption(PlainData):
    """Before step `step`, write `value` to `option` of parameter group `group` (-1: of every group)."""

    step: int
    option: str
    value: Option
    group: int = -1


@dataclass(frozen=True, repr=False)
class Decay(PlainData):
    """An `ExponentialLR` scheduler, stepped after each optimizer step."""

    gamma: float


@dataclass(frozen=True, repr=False)
class OneCycle(PlainData):
    """A `OneCycleLR` scheduler, stepped after each optimizer step; it moves momentum or betas too, if `momentum`."""

    max_lr: float
    momentum: bool = True


@dataclass(frozen=True, repr=False)
class AddGroup(PlainData):
    """Before step `step` (0: right after construction), add a parameter group to the optimizer."""

    step: int
    group: Group


@dataclass(frozen=True, repr=False)
class Unfreeze(PlainData):
    """Before step `step`, let these frozen parameters require gradients."""

    step: int
    parameters: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Freeze(PlainData):
    """Before step `step`, let these parameters not require gradients; drop those that they have, or not."""

    step: int
    parameters: tuple[str, ...]
    drops: bool = True


@dataclass(frozen=True, repr=False)
class SaveAndLoad(PlainData):
    """Before step `step`, make a new optimizer and load the old one's `state_dict` into it."""

    step: int


@dataclass(frozen=True, repr=False)
class Save(PlainData):
    """Before step `step`, take the optimizer's `state_dict`, and go on."""

    step: int


@dataclass(frozen=True, repr=False)
class Rebuild(PlainData):
    """Before step `step`, make a new optimizer without the old one's state. Never drawn: a known mistake."""

    step: int


@dataclass(frozen=True, repr=False)
class LoadWeights(PlainData):
    """Before step `step`, let the wrapped model load what its `state_dict` was before training."""

    step: int


Event: TypeAlias = (
    SetOption | Decay | OneCycle | AddGroup | Unfreeze | Freeze | SaveAndLoad | Save | Rebuild | LoadWeights
)


@dataclass(frozen=True, repr=False)
class Scenario(Drawn):
    """Everything that decides a training run, except the numbers: these derive from `seed` and the run's secret.

    Attributes, beside those of `Drawn`:
        model, optimizer: what is trained, and how.
        steps: optimizer steps.
        batch: samples per rank and micro-batch.
        uneven: rank r has r samples more; each rank then weights its loss by its share of the samples, so that the
            average over the ranks is the loss of all samples.
        equal_start: all ranks have rank 0's weights before wrapping, too.
        micro_batches: backward passes per step, whose gradients add up.
        joined: the losses of the micro-batches are added up and share one backward pass.
        finishes_once: `on_after_backward` is called once, after the last of these passes.
        no_sync: all micro-batches but the last are computed under the wrapper's `no_sync`, if it has one.
        nests: before each of them, a second block of `no_sync` is entered and left inside the first.
        evaluates: before each step, the model computes the step's batch in evaluation mode, without gradients.
        in_evaluation: the model trains in evaluation mode, as it does if its norms must keep their statistics.
        aborts: before this step, a backward pass of another batch raises half way on all ranks, and its gradients are
            cleared. If micro-batches run under the wrapper's `no_sync`, the exception leaves that block.
        converted: what the wrapped model is converted to right after wrapping: to float64, from a model in float32, or
            to the memory format channels last.
        unwrapped: forward is called on the wrapper's attribute `module`, if it has one, past the wrapper.
        clip: the largest norm of all gradients when the optimizer steps; None: they are not clipped.
        replicated: every rank gets the whole global batch, so that gradients need no synchronisation.
        averaged: the judge's own code averages gradients over the ranks, as a plain data-parallel wrapper does.
        bucket_size_mb: for bucketed wrappers; in MiB, None for one unbounded bucket.
        set_to_none: the argument of `zero_grad`.
        cleared_by: whose `zero_grad` is called before each step, or by the closure.
        clears_late: `zero_grad` is called between the first forward of a step and its backward.
        closure: whether `step` gets a closure that clears gradients, and computes the loss and new ones.
        scaler: steps go through a gradient scaler. In the first step, which is to be skipped, one gradient is infinite
            on all ranks, as after averaging.
        large: targets are so far away, and losses so large, that the gradient of the last layer's bias just fits in
            float16, and the sum of two ranks' gradients does not.
        overflows: targets of the last rank are infinite, and so are the gradients of the losses.
        penalised: the loss contains the mean square of the outputs' gradient by the inputs, so backward passes
            through the computation of that gradient too.
        peeks: between each forward and its backward, the model is called without gradients.
        twins: a second model with the same numbers is wrapped too. In each step it computes the gradients of the first
            batch, its forward and backward between those of the first model. With an optimizer: a second optimizer
            of copies of the parameters steps with the same gradients before the first one.
        counted: tensors and handles that are alive after each step are counted.
        weighed: after training, the memory that the state of another optimizer needs is weighed.
        spoiled: after training, there is a backward pass more, in which collectives give NaN.
        simulated: all ranks are threads of one process, so that there may be more of them than a machine can run.
        order: the choices of a schedule for simulated ranks: which rank runs next, and which results land early.
        lossy: how far communication may take a gradient, or with `replicated` a parameter, relative to the tensor's
            largest element.
        schedule: what happens between steps.
    """

    world_size: int = 2
    model: ModelSpec = field(default_factory=ModelSpec)
    optimizer: OptimizerSpec = OptimizerSpec()
    steps: int = 1
    batch: int = 1
    uneven: bool = False
    equal_start: bool = False
    micro_batches: int = 1
    joined: bool = False
    finishes_once: bool = False
    no_sync: bool = False
    nests: bool = False
    evaluates: bool = False
    in_evaluation: bool = False
    aborts: int | None = None
    converted: Conversion = "nothing"
    unwrapped: bool = False
    clip: float | None = None
    replicated: bool = False
    averaged: bool = False
    bucket_size_mb: float | None = 1.0
    set_to_none: bool = True
    cleared_by: Literal["optimizer", "model"] = "optimizer"
    clears_late: bool = False
    closure: bool = False
    scaler: bool = False
    gated: bool = False
    large: bool = False
    overflows: bool = False
    penalised: bool = False
    peeks: bool = False
    twins: bool = False
    counted: bool = False
    two_machines: bool = False
    weighed: bool = False
    spoiled: bool = False
    simulated: bool = False
    order: tuple[int, ...] = ()
    lossy: float = 0.0
    schedule: tuple[Event, ...] = ()
    seed: int = 0

    def batch_of(self, rank: int) -> int:
        """Return how many samples a rank has in each micro-batch."""
        return self.batch + self.uneven * rank

    def weight(self, rank: int) -> float:
        """Return what a rank multiplies the mean of its losses with."""
        ranks = range(self.world_size)
        return 1.0 if self.replicated else self.world_size * self.batch_of(rank) / sum(map(self.batch_of, ranks))

    @property
    def loss_scale(self) -> float:
        """What losses are multiplied with besides."""
        return 256.0 * self.model.widths[-1] if self.large else 1.0

    def micro(self, step: int) -> range:
        """Return the numbers of the micro-batches of a step, among those of all steps."""
        return range(step * self.micro_batches, (step + 1) * self.micro_batches)

    def is_first(self, micro: int) -> bool:
        """Return whether a micro-batch is the first one of its step."""
        return micro % self.micro_batches == 0

    def trains(self, step: int) -> bool:
        """Return whether any parameter requires a gradient in step `step`."""
        trainable = set(self.model.trainable)
        for event in (event for before in range(step + 1) for event in self.events(before)):
            if isinstance(event, Freeze):
                trainable.difference_update(event.parameters)
            elif isinstance(event, Unfreeze):
                trainable.update(event.parameters)
        return bool(trainable)

    def events(self, step: int) -> list[Event]:
        """Return what happens right before step `step`; a scheduler is made before step 0."""
        return [event for event in self.schedule if getattr(event, "step", 0) == step]

    @property
    def followed(self) -> bool:
        """Whether correct trainings drift apart, so that the right one goes on from what rank 0 has after each step."""
        return self.model.narrow or self.lossy > 0

    @property
    def observed(self) -> bool:
        """Whether the collectives of the ranks are observed."""
        return self.gated or self.counted

    @cached_property
    def unbucketed(self) -> "Scenario":
        """The same without a size of buckets: neither what ranks are given nor what is right depends on it."""
        return replace(self, bucket_size_mb=None)

    @property
    def in_float32(self) -> "Scenario":
        """The same where models in float64 are in float32, and buckets of half the size have as many parameters."""
        model, size = self.model.in_float32, self.bucket_size_mb
        return replace(self, model=model, bucket_size_mb=size and size * (0.5 if model != self.model else 1.0))

    def __hash__(self) -> int:
        """Return the hash of the text: options are dicts, which have none."""
        return hash(self.text)
