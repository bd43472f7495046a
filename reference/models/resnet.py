"""torchvision's ResNet-18, its first layers fitted to CIFAR-10: 11 million parameters.

The original halves its input twice before the first block, which suits 224x224 images and would leave 8x8 of 32x32. As
in the paper's own CIFAR experiments, the stem is one 3x3 convolution of stride 1, and nothing is pooled after it.

Source: He et al., "Deep Residual Learning for Image Recognition" (2016), section 4.2.
"""

from torch import nn


def resnet18() -> nn.Module:
    """Images of shape (batch, 3, 32, 32) to logits of shape (batch, 10).

    Raises:
        ModuleNotFoundError: torchvision is not installed.
    """
    try:
        from torchvision import models  # type: ignore[import-untyped]  # noqa: PLC0415  # optional
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("resnet18 is torchvision's: pip install 'pytest-ddp[vision]'") from error
    model: nn.Module = models.resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")  # as torchvision draws the others
    model.maxpool = nn.Identity()
    return model
