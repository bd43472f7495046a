"""The models that the references train, by name: from an MLP for digits to a transformer of 2.7 billion parameters.

`build` makes a model on torch's default device. Under `torch.device("meta")`, the largest one takes no memory;
`to_empty` allocates it later.
"""

from collections.abc import Callable

from torch import nn

from reference.models import images, transformer

_BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "cnn": images.cnn,
    "mnist-mlp": images.mlp,
    "mnist-convnet": images.convnet,
    "resnet18": images.resnet18,
    **{f"transformer-{size}": transformer.builder(size) for size in transformer.SIZES},
}

NAMES = tuple(_BUILDERS)

IMAGE_SHAPES = {"cnn": (3, 32, 32), "mnist-mlp": (1, 28, 28), "mnist-convnet": (1, 28, 28), "resnet18": (3, 32, 32)}
"""Channels, height and width of the images that each image model takes."""


def build(name: str) -> nn.Module:
    """The model of this name, initialized from torch's random generator.

    Raises:
        ValueError: there is no such model.
    """
    if name not in _BUILDERS:
        raise ValueError(f"there is no model {name!r}; there are {', '.join(NAMES)}")
    return _BUILDERS[name]()
