"""Makes layers those of the assignment.

Its model is made of `Linear`, `Embedding` and `RMSNorm` of `cs336_basics.model`, and the first two are to be sharded:
most submissions look for these very classes. Scripts that show a failure hold the source of this function.
"""

from importlib import import_module
from types import MethodType

from torch import nn


def of_the_assignment(model: nn.Module) -> None:
    """Give torch's layers of a model the classes of the assignment's; they compute as before.

    Raises:
        ImportError: there is no `cs336_basics.model`.
    """
    theirs = import_module("cs336_basics.model")
    for name in ("Linear", "Embedding", "RMSNorm"):
        kind = getattr(theirs, name, None)
        for layer in model.modules():
            if isinstance(layer, getattr(nn, name)) and isinstance(kind, type):
                layer.forward = MethodType(type(layer).forward, layer)
                layer.__class__ = kind
