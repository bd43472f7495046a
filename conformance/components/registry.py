"""All components, in the order in which they are graded: one line each."""

from conformance.checks.validation import validate, validate_strategies
from conformance.components.both.record import BOTH
from conformance.components.checkpoint.record import CHECKPOINT
from conformance.components.component import Component
from conformance.components.distributed_sampler.record import DISTRIBUTED_SAMPLER
from conformance.components.engine.record import ENGINE
from conformance.components.evaluation.record import EVALUATION
from conformance.components.fsdp.record import FSDP
from conformance.components.gradient_accumulation.record import GRADIENT_ACCUMULATION
from conformance.components.loader_generator.record import LOADER_GENERATOR
from conformance.components.overhead_model.record import OVERHEAD_MODEL
from conformance.components.sharded_optimizer.record import SHARDED_OPTIMIZER
from conformance.components.sync_batchnorm.record import SYNC_BATCHNORM
from conformance.components.wrapper.record import WRAPPERS
from conformance.diagnosis.gradient_mistakes import GRADIENT_MISTAKES
from conformance.diagnosis.training_mistakes import TRAINING_MISTAKES

_ALL: tuple[Component, ...] = (
    *WRAPPERS,
    SHARDED_OPTIMIZER,
    BOTH,
    OVERHEAD_MODEL,
    DISTRIBUTED_SAMPLER,
    EVALUATION,
    LOADER_GENERATOR,
    GRADIENT_ACCUMULATION,
    SYNC_BATCHNORM,
    CHECKPOINT,
    FSDP,
    ENGINE,
)
COMPONENTS = {component.name: component for component in _ALL}
# What is graded if nobody names components: no assignment asks for an engine.
BY_DEFAULT = tuple(name for name, one in COMPONENTS.items() if one.contract.kind != "engine")
for _component in _ALL:
    validate(
        _component.name,
        _component.checks,
        _component.aspects,
        {*GRADIENT_MISTAKES, *TRAINING_MISTAKES},
        named=(*filter(None, [_component.start]), *_component.carries),
    )
validate_strategies(check for component in _ALL for check in component.checks)
