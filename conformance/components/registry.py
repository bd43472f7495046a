"""Which checks each component is held to, in the order in which they run."""

from conformance.checks.check import Check
from conformance.checks.validation import validated
from conformance.components.checkpoint.table import CHECKS as CHECKPOINT
from conformance.components.distributed_sampler.table import CHECKS as DISTRIBUTED_SAMPLER
from conformance.components.evaluation.table import CHECKS as EVALUATION
from conformance.components.fsdp.table import CHECKS as FSDP
from conformance.components.gradient_accumulation.table import CHECKS as GRADIENT_ACCUMULATION
from conformance.components.loader_generator.table import CHECKS as LOADER_GENERATOR
from conformance.components.overhead_model.table import CHECKS as OVERHEAD_MODEL
from conformance.components.sharded_optimizer.table import CHECKS as SHARDED_OPTIMIZER
from conformance.components.sync_batchnorm.table import CHECKS as SYNC_BATCHNORM
from conformance.components.wrapper.table import wrapper_checks
from conformance.diagnosis.gradient_mistakes import BY_NAME as GRADIENT_MISTAKES
from conformance.diagnosis.training_mistakes import BY_NAME as TRAINING_MISTAKES
from conformance.submissions.contract import COMPONENTS

_LOOP = {
    "checkpoint": CHECKPOINT,
    "distributed_sampler": DISTRIBUTED_SAMPLER,
    "evaluation": EVALUATION,
    "fsdp": FSDP,
    "gradient_accumulation": GRADIENT_ACCUMULATION,
    "loader_generator": LOADER_GENERATOR,
    "overhead_model": OVERHEAD_MODEL,
    "sharded_optimizer": SHARDED_OPTIMIZER,
    "sync_batchnorm": SYNC_BATCHNORM,
}
_MISTAKES = {*GRADIENT_MISTAKES, *TRAINING_MISTAKES}
CHECKS: dict[str, tuple[Check, ...]] = {
    name: validated(name, wrapper_checks(name) if component.kind == "wrapper" else _LOOP[name], _MISTAKES)
    for name, component in COMPONENTS.items()
}
