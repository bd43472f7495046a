"""The data-parallel wrappers of `reference.adapters`, in one shape, so that one set of tests holds for all."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from reference import adapters


@dataclass(frozen=True)
class Wrapper:
    """How a training loop uses one data-parallel wrapper.

    Attributes:
        wrap: from a module to the module to train.
        after_backward: call it with both once the gradients are there.
        before_batch: call it with both before each batch.
    """

    wrap: Callable[[nn.Module], nn.Module]
    after_backward: Callable[[nn.Module, Optimizer], None]
    before_batch: Callable[[nn.Module, Optimizer], None] = lambda _model, _optimizer: None


def bucketed(bucket_size_mb: float | None) -> Wrapper:
    return Wrapper(
        lambda module: adapters.get_ddp_bucketed(module, bucket_size_mb),
        adapters.ddp_bucketed_on_after_backward,
        adapters.ddp_bucketed_on_train_batch_start,
    )


NAIVE = Wrapper(adapters.get_naive_ddp, adapters.naive_ddp_on_after_backward)
FLAT = Wrapper(adapters.get_flat_ddp, adapters.flat_ddp_on_after_backward)

AFTER_BACKWARD = {"naive_ddp": NAIVE, "flat_ddp": FLAT}
"""Those that communicate when backward is over."""

OVERLAPPED = {
    "ddp_individual_parameters": Wrapper(
        adapters.get_ddp_individual_parameters, adapters.ddp_individual_parameters_on_after_backward
    ),
    "ddp_bucketed-one_parameter_each": bucketed(1e-6),
    "ddp_bucketed-several_buckets": bucketed(300 / 1024**2),
    "ddp": Wrapper(adapters.get_ddp, adapters.ddp_on_after_backward),
}
"""Those that communicate during the backward of the models at hand."""

WRAPPERS = {
    **AFTER_BACKWARD,
    **OVERLAPPED,
    "ddp_bucketed-unbounded": bucketed(None),
}

ONE_OF_EACH = {
    name: WRAPPERS[name]
    for name in ("naive_ddp", "flat_ddp", "ddp_individual_parameters", "ddp_bucketed-several_buckets")
}
"""One of each class."""
