"""fairscale's optimizer with sharded state, behind the adapter's name."""

from fairscale.optim import OSS


def sharded_by_fairscale(params, optimizer_cls, **kwargs):
    return OSS(params, optim=optimizer_cls, **kwargs)
