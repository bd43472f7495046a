"""Turns layers of torch into layers of the CS336 assignment.

The assignment's model consists of `Linear`, `Embedding` and `RMSNorm` of `cs336_basics.model`, and FSDP must shard the
first two: most submissions look for exactly these classes. Scripts hold the source of this function.
"""

from importlib import import_module
from types import MethodType

from torch import nn


def of_the_assignment(model: nn.Module) -> None:
    """Change the classes of torch's layers in a model to those of the assignment; the layers compute as before.

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
