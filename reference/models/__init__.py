"""The models that the references train, by name: from an MLP for digits to a transformer of 3 billion parameters.

A name costs nothing until it is built, and what `build` makes lives on torch's default device: under
`torch.device("meta")` the largest takes no memory, and `to_empty` gives it some later.
"""

from collections.abc import Callable

from torch import nn

from reference.models import cnn, mnist, resnet, transformer

_BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "cnn": cnn.cnn,
    "mnist-mlp": mnist.mlp,
    "mnist-convnet": mnist.convnet,
    "resnet18": resnet.resnet18,
    **{f"transformer-{size}": transformer.builder(size) for size in transformer.SIZES},
}

NAMES = tuple(_BUILDERS)

IMAGE_SHAPES = {"cnn": (3, 32, 32), "mnist-mlp": (1, 28, 28), "mnist-convnet": (1, 28, 28), "resnet18": (3, 32, 32)}
"""What the models for images take: channels, height, width."""


def build(name: str) -> nn.Module:
    """The model of this name, freshly initialised from torch's generator.

    Raises:
        ValueError: there is no such model.
    """
    if name not in _BUILDERS:
        raise ValueError(f"there is no model {name!r}; there are {', '.join(NAMES)}")
    return _BUILDERS[name]()
