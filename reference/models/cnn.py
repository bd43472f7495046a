"""The small convolutional network of PyTorch's tutorial "Training a Classifier", for CIFAR-10: 62 thousand parameters.

Source: https://docs.pytorch.org/tutorials/beginner/blitz/cifar10_tutorial.html; the architecture is LeNet-5's (LeCun et
al., "Gradient-Based Learning Applied to Document Recognition", 1998) for three colours.
"""

from torch import nn


def cnn() -> nn.Module:
    """Images of shape (batch, 3, 32, 32) to logits of shape (batch, 10)."""
    return nn.Sequential(
        *_convolve(3, 6),  # 32x32 to 14x14
        *_convolve(6, 16),  # to 5x5
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def _convolve(channels_in: int, channels_out: int) -> list[nn.Module]:
    return [nn.Conv2d(channels_in, channels_out, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2)]
