"""Models for images: two for MNIST's digits, two for CIFAR-10's photographs.

- `mlp`, for MNIST, has nothing but linear layers.
- `convnet`, for MNIST, has batch norm, so it has buffers (running mean and variance). It shows two things that the MLP
  cannot: whether buffers stay equal on all ranks, and how training changes if each rank normalizes its own batch.
- `cnn`, for CIFAR-10, is the small network of PyTorch's tutorial "Training a Classifier", with 62 thousand parameters.
  Its architecture is LeNet-5's for three colours.
- `resnet18`, for CIFAR-10, is torchvision's with other first layers, and has 11 million parameters.

Sources: LeCun et al., "Gradient-Based Learning Applied to Document Recognition" (1998);
https://docs.pytorch.org/tutorials/beginner/blitz/cifar10_tutorial.html; He et al., "Deep Residual Learning for Image
Recognition" (2016), section 4.2.
"""

from torch import nn


def mlp() -> nn.Module:
    """From images of shape (batch, 1, 28, 28) to logits of shape (batch, 10): two hidden layers of 256 units."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(28 * 28, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def convnet() -> nn.Module:
    """From images of shape (batch, 1, 28, 28) to logits of shape (batch, 10)."""
    return nn.Sequential(
        *_normalized_convolution(1, 16),  # 28x28 to 14x14
        *_normalized_convolution(16, 32),  # to 7x7
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 10),
    )


def cnn() -> nn.Module:
    """From images of shape (batch, 3, 32, 32) to logits of shape (batch, 10)."""
    return nn.Sequential(
        *_convolution(3, 6),  # 32x32 to 14x14
        *_convolution(6, 16),  # to 5x5
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def resnet18() -> nn.Module:
    """From images of shape (batch, 3, 32, 32) to logits of shape (batch, 10).

    The original ResNet-18 reduces its input to a quarter of its width before the first block, which suits 224x224
    images but would leave 8x8 of 32x32. As in the paper's experiments on CIFAR-10, the first layer is a 3x3 convolution
    of stride 1, without pooling after it.

    Raises:
        ModuleNotFoundError: torchvision is not installed.
    """
    try:
        from torchvision import models  # type: ignore[import-untyped]  # noqa: PLC0415  # optional
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("resnet18 needs torchvision: pip install 'pytest-ddp[vision]'") from error
    model: nn.Module = models.resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")  # as torchvision's other layers
    model.maxpool = nn.Identity()
    return model


def _normalized_convolution(channels_in: int, channels_out: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels_in, channels_out, kernel_size=5, padding=2),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]


def _convolution(channels_in: int, channels_out: int) -> list[nn.Module]:
    return [nn.Conv2d(channels_in, channels_out, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2)]
