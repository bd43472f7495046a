"""Two models for MNIST's digits: an MLP without anything special, and a ConvNet with batch normalisation.

The ConvNet has buffers (running mean and variance), so it shows what the MLP cannot: whether buffers stay equal on all
ranks, and what statistics over a rank's own share of the batch do to training.
"""

from torch import nn


def mlp() -> nn.Module:
    """Images of shape (batch, 1, 28, 28) to logits of shape (batch, 10): two hidden layers of 256 units."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(28 * 28, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def convnet() -> nn.Module:
    """Images of shape (batch, 1, 28, 28) to logits of shape (batch, 10)."""
    return nn.Sequential(
        *_convolve(1, 16),  # 28x28 to 14x14
        *_convolve(16, 32),  # to 7x7
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 10),
    )


def _convolve(channels_in: int, channels_out: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels_in, channels_out, kernel_size=5, padding=2),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
