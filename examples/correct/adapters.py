# ruff: noqa: ARG001  # the assignment gives the signatures
from data_parallel import BucketedDDP, FlatDDP, IndividualDDP, NaiveDDP
from sharded_optimizer import ShardedOptimizer


def get_naive_ddp(module):
    return NaiveDDP(module)


def naive_ddp_on_after_backward(ddp_model, optimizer):
    ddp_model.finish_gradient_synchronization()


def get_flat_ddp(module):
    return FlatDDP(module)


def flat_ddp_on_after_backward(ddp_model, optimizer):
    ddp_model.finish_gradient_synchronization()


def get_ddp_individual_parameters(module):
    return IndividualDDP(module)


def ddp_individual_parameters_on_after_backward(ddp_model, optimizer):
    ddp_model.finish_gradient_synchronization()


def get_ddp_bucketed(module, bucket_size_mb):
    return BucketedDDP(module, bucket_size_mb)


def ddp_bucketed_on_after_backward(ddp_model, optimizer):
    ddp_model.finish_gradient_synchronization()


def ddp_bucketed_on_train_batch_start(ddp_model, optimizer):
    pass  # forward starts afresh by itself


def get_ddp(module):
    return IndividualDDP(module)


def ddp_on_after_backward(ddp_model, optimizer):
    ddp_model.finish_gradient_synchronization()


def get_sharded_optimizer(params, optimizer_cls, **kwargs):
    return ShardedOptimizer(params, optimizer_cls, **kwargs)
