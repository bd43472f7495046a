"""Trainings by what they shard over the ranks: nothing (`ddp`), the optimizer's state (`zero1`), everything (`fsdp`).

All use AdamW. A submission's sharded optimizer trains with the reference's bucketed wrapper, which averages gradients.
"""

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.optim import AdamW, Optimizer

from reference import adapters
from reference.bench.contestants import Contestant, Workload, build_model, of_submission
from reference.bench.submission import FSDP, Submission, load_submission, submitted

NAMES = ("ddp", "zero1", "fsdp")
Recipe = Callable[[], Contestant]
"""Makes a training of a new model. A collective."""

_LEARNING_RATE = 1e-4


def strategies(workload: Workload) -> dict[str, Recipe]:
    """Every strategy of the references, and those of a submission that it has implemented, by name. A collective."""
    found = _of(Submission(adapters), "bucketed", lambda name: name, workload)
    if workload.submission is None:
        return found
    theirs = load_submission(workload.submission)
    wrappers = theirs.wrappers()
    recipes = _of(theirs, wrappers[-1] if wrappers else None, submitted, workload)
    offered = {"ddp": bool(wrappers), "zero1": theirs.implements_sharded_optimizer(), "fsdp": theirs.implements(FSDP)}
    return found | {submitted(name): recipes[submitted(name)] for name in NAMES if offered[name]}


def _of(
    submission: Submission, wrapper: str | None, named: Callable[[str], str], workload: Workload
) -> dict[str, Recipe]:
    def wrapped(name: str, kind: str) -> Contestant:
        made = of_submission(submission, kind, build_model(workload.model), workload.bucket_mb, _adamw)
        return Contestant(named(name), made.model, made.finish, made.optimizer, made.begin)

    def sharded() -> Contestant:
        model = adapters.get_ddp_bucketed(build_model(workload.model), workload.bucket_mb)
        optimizer = submission.shard(model, AdamW, lr=_LEARNING_RATE)
        return Contestant(named("zero1"), model, model.finish_gradient_synchronization, optimizer)

    return {
        named("ddp"): lambda: wrapped("ddp", wrapper or "ddp"),
        named("zero1"): sharded,
        named("fsdp"): lambda: wrapped("fsdp", "fsdp"),
    }


def _adamw(parameters: Iterable[Tensor]) -> Optimizer:
    return AdamW(parameters, lr=_LEARNING_RATE)
