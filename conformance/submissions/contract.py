"""The adapter functions: what a submission may define, and how each is called."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Function:
    """One adapter function: its name, its positional parameters, and whether it takes any keyword arguments besides."""

    name: str
    parameters: tuple[str, ...]
    keywords: bool = False

    def __str__(self) -> str:
        return f"{self.name}({', '.join([*self.parameters, *(['**kwargs'] if self.keywords else [])])})"


@dataclass(frozen=True)
class Component:
    """One thing that an assignment asks for.

    Attributes:
        name: as in reports.
        kind: a wrapper around a module, an optimizer, or a part of the training loop around them.
        get: makes the wrapper or the optimizer; of a part, its first function.
        after_backward: called between backward and the optimizer's step.
        batch_start: called at the very start of a training step.
        more: further functions of a part.
    """

    name: str
    kind: Literal["wrapper", "optimizer", "part"]
    get: Function
    after_backward: Function | None = None
    batch_start: Function | None = None
    more: tuple[Function, ...] = ()

    @property
    def functions(self) -> tuple[Function, ...]:
        """All adapter functions of the component."""
        return tuple(f for f in (self.get, self.after_backward, self.batch_start, *self.more) if f is not None)


def _wrapper(name: str, *more: str, batch_start: bool = False) -> Component:
    called_with = ("ddp_model", "optimizer")
    return Component(
        name,
        "wrapper",
        Function(f"get_{name}", ("module", *more)),
        Function(f"{name}_on_after_backward", called_with),
        Function(f"{name}_on_train_batch_start", called_with) if batch_start else None,
    )


def _part(name: str, *functions: Function) -> Component:
    return Component(name, "part", functions[0], more=functions[1:])


COMPONENTS = {
    component.name: component
    for component in (
        _wrapper("naive_ddp"),
        _wrapper("flat_ddp"),
        _wrapper("ddp_individual_parameters"),
        _wrapper("ddp_bucketed", "bucket_size_mb", batch_start=True),
        _wrapper("ddp"),
        Component(
            "sharded_optimizer",
            "optimizer",
            Function("get_sharded_optimizer", ("params", "optimizer_cls"), keywords=True),
        ),
        _part(
            "overhead_model",
            Function("ddp_overhead", ("s", "w", "o", "n_b")),
            Function("optimal_bucket_size", ("s", "w", "o")),
        ),
        _part(
            "distributed_sampler",
            Function("get_distributed_sampler", ("dataset", "num_replicas", "rank", "shuffle", "seed", "drop_last")),
        ),
        _part("evaluation", Function("evaluate", ("model", "batches"))),
        _part("loader_generator", Function("get_ddp_generator", ("seed",))),
        _part(
            "gradient_accumulation",
            Function("accumulate_and_step", ("ddp_model", "optimizer", "microbatches", "loss_fn", "scaler")),
        ),
        _part("sync_batchnorm", Function("convert_sync_batchnorm", ("module",))),
        _part(
            "checkpoint",
            Function("save_checkpoint", ("path", "model", "optimizer", "scaler", "epoch")),
            Function("load_checkpoint", ("path", "model", "optimizer", "scaler")),
        ),
        _part(
            "fsdp",
            Function("get_fsdp", ("module", "compute_dtype")),
            Function("fsdp_on_after_backward", ("fsdp_model", "optimizer")),
            Function("fsdp_gather_full_params", ("fsdp_model",)),
        ),
    )
}
