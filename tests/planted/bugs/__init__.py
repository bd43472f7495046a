"""All bugs that are planted in right submissions, by component and idea."""

from bugs import (
    both,
    checkpoint,
    ddp,
    distributed_sampler,
    engine,
    evaluation,
    fsdp,
    gradient_accumulation,
    loader_generator,
    overhead_model,
    sharded_optimizer,
    sync_batchnorm,
)

BUGS = [
    *ddp.BUGS,
    *sharded_optimizer.BUGS,
    *both.BUGS,
    *overhead_model.BUGS,
    *distributed_sampler.BUGS,
    *evaluation.BUGS,
    *loader_generator.BUGS,
    *gradient_accumulation.BUGS,
    *sync_batchnorm.BUGS,
    *checkpoint.BUGS,
    *fsdp.BUGS,
    *engine.BUGS,
]
