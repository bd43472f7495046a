"""Copies of one model that train side by side on the same ranks, each with another way to average gradients.

`none` exchanges nothing: it shows what a step costs without communication. It is the base for what the others add.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from reference.bench.method import SEED
from reference.bench.submission import FSDP, Submission, is_submitted, kind, load_submission, submitted
from reference.bench.submission import WRAPPERS as SUBMITTED
from reference.communication.process_group import current_device
from reference.ddp.bucketed import BucketedDDP
from reference.ddp.flat import FlatDDP
from reference.ddp.naive import NaiveDDP
from reference.ddp.overlapped import OverlappedDDP
from reference.models.transformer import SIZES, VOCABULARY, Size, Transformer

NONE = "none"
WRAPPERS = ("naive", "flat", "overlapped", "bucketed", "torch")
_HEAD_WIDTH = 64
_SMALL_VOCABULARY = 1000
_HOOKS = ("on_train_batch_start", "on_after_backward")


@dataclass(frozen=True)
class Workload:
    """What every contestant trains.

    Attributes:
        model: a name of `transformer.SIZES`, or `WIDTHxLAYERS`, such as `128x4`: a transformer of this width.
        samples: sequences in the batch of each rank.
        words: tokens in each sequence.
        bucket_mb: largest size of a bucket, in units of 1024 * 1024 bytes, for the wrappers that have buckets.
        submission: where a submission is whose wrappers train too.
    """

    model: str
    samples: int
    words: int
    bucket_mb: float
    submission: str | None = None


@dataclass(frozen=True)
class Contestant:
    """A wrapper around a model of its own, and the optimizer of its parameters.

    Attributes:
        name: of the wrapper.
        model: the wrapped model: from token ids (batch, length) to logits.
        finish: called after backward; then every gradient is averaged.
        optimizer: of all parameters.
        begin: called before forward.
    """

    name: str
    model: nn.Module
    finish: Callable[[], object]
    optimizer: torch.optim.Optimizer
    begin: Callable[[], object] = lambda: None

    def loss(self, tokens: Tensor) -> Tensor:
        """The mean loss of predicting each next token of (batch, length + 1) token ids: 0-d."""
        self.begin()
        return cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def step(self, tokens: Tensor) -> None:
        """Train on one batch of token ids (batch, length + 1), until the device is done with it."""
        self.optimizer.zero_grad()
        torch.autograd.backward(self.loss(tokens))
        self.finish()
        self.optimizer.step()
        if tokens.is_cuda:
            torch.cuda.synchronize()


def size_of(name: str) -> tuple[Size, int]:
    """Size and vocabulary of a model by its name.

    Raises:
        ValueError: the name is neither in `transformer.SIZES` nor like `128x4`.
    """
    if name in SIZES:
        return SIZES[name], VOCABULARY
    width, _, layers = name.partition("x")
    if not (width.isdigit() and layers.isdigit() and int(width) and int(layers)):
        raise ValueError(f"there is no model {name!r}; there are {', '.join(SIZES)}, and WIDTHxLAYERS such as 128x4")
    heads = max(1, int(width) // _HEAD_WIDTH)
    return Size(int(width), 4 * int(width), int(layers), heads), _SMALL_VOCABULARY


def build_model(name: str) -> Transformer:
    """The model of this name on this rank's device, initialized from the same seed on every rank."""
    torch.manual_seed(SEED)
    return Transformer(*size_of(name)).to(current_device())


def batch(workload: Workload) -> Tensor:
    """This rank's token ids: shape (samples, words + 1), int64."""
    _, vocabulary = size_of(workload.model)
    generator = torch.Generator().manual_seed(SEED + dist.get_rank())
    tokens = torch.randint(vocabulary, (workload.samples, workload.words + 1), generator=generator)
    return tokens.to(current_device())


def contestant(name: str, workload: Workload) -> Contestant:
    """Wrap a model of its own; all contestants begin with equal parameters.

    Args:
        name: one of `WRAPPERS`, or `NONE`, or one of `submitted_names`.
        workload: says which model.
    """
    model = build_model(workload.model)
    if is_submitted(name) and workload.submission is not None:
        return of_submission(load_submission(workload.submission), name, model, workload.bucket_mb, _sgd)
    wrapped = wrap(name, model, workload.bucket_mb)
    finish = getattr(wrapped, "finish_gradient_synchronization", _nothing)
    return Contestant(name, wrapped, finish, _sgd(model.parameters()))


def wrap(name: str, model: nn.Module, bucket_mb: float) -> nn.Module:
    """The model in the wrapper of this name."""
    makers: dict[str, Callable[[], nn.Module]] = {
        NONE: lambda: model,
        "naive": lambda: NaiveDDP(model),
        "flat": lambda: FlatDDP(model),
        "overlapped": lambda: OverlappedDDP(model),
        "bucketed": lambda: BucketedDDP(model, bucket_mb),
        "torch": lambda: DistributedDataParallel(model, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True),
    }
    return makers[name]()


def submitted_names(workload: Workload) -> list[str]:
    """The names of the submission's contestants. A collective, which imports the submission."""
    if workload.submission is None:
        return []
    return [submitted(name) for name in load_submission(workload.submission).wrappers()]


def of_submission(
    submission: Submission,
    name: str,
    model: nn.Module,
    bucket_mb: float | None,
    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
) -> Contestant:
    """A submission's wrapper around a model, with an optimizer of its parameters.

    Args:
        submission: that has the wrapper.
        name: of the contestant; without the mark of a submission, a key of `submission.WRAPPERS`, or `fsdp`.
        model: to wrap.
        bucket_mb: as in `Workload`.
        optimizer: makes the optimizer.
    """
    names = {**SUBMITTED, "fsdp": FSDP}[kind(name)]
    wrapped = submission.wrap(names, model, bucket_mb)
    made = optimizer(wrapped.parameters())
    begin, finish = (partial(submission.hook(names, when), wrapped, made) for when in _HOOKS)
    return Contestant(name, wrapped, finish, made, begin)


def _sgd(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def _nothing() -> None:
    """What to do after backward if the wrapper has done all in it."""
