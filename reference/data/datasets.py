"""The datasets that the references train on: MNIST, CIFAR-10, and synthetic images and text that need no network.

Every rank builds the same dataset; a sampler decides which rank reads which examples. Ranks that share a disk download
one after the other: the first one downloads the files, and the others find them.
"""

from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

Shape = tuple[int, int, int]
MNIST_SHAPE, CIFAR10_SHAPE = (1, 28, 28), (3, 32, 32)
NAMES = ("synthetic", "mnist", "cifar10")
_CLASSES = 10
_SURPRISES = 0.1  # of the tokens in a synthetic text
_MEAN_AND_STD = {  # of each channel over the training images, which ToTensor scales to 0 to 1
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}


def build(
    name: str, root: str | Path = "data", *, train: bool = True, shape: Shape = CIFAR10_SHAPE
) -> Dataset[tuple[Tensor, int]]:
    """The training or test examples of a dataset: images of shape (channels, height, width) and labels 0 to 9.

    Args:
        name: one of `NAMES`.
        root: folder for downloads.
        train: True for the training examples, False for the test examples.
        shape: of the synthetic images. Those of the other datasets have their own shape.

    Raises:
        ValueError: there is no such dataset.
        RuntimeError: the files are not in `root` and cannot be downloaded.
        ModuleNotFoundError: torchvision, which reads MNIST and CIFAR-10, is not installed.
    """
    if name not in NAMES:
        raise ValueError(f"there is no dataset {name!r}; there are {', '.join(NAMES)}")
    if name == "synthetic":
        return Synthetic(shape, train=train)
    return _download(name, Path(root), train=train)


class Synthetic(Dataset[tuple[Tensor, int]]):
    """Images of ten classes: each class has a pattern, which is shifted at random and covered by noise.

    Guessing gets 10% of the labels right. After one epoch of 128 steps the CNN gets about 97%, and the MLP 81%, because
    the MLP must learn a pattern at every position. Example `index` is drawn from a generator of its own when it is
    read. So it is the same on every rank and in every worker process, in any order of reading. Training and test
    examples have the same patterns, but different shifts and noise.
    """

    def __init__(
        self, shape: Shape = CIFAR10_SHAPE, *, train: bool = True, size: int | None = None, seed: int = 0
    ) -> None:
        self.size = size if size is not None else (8192 if train else 2048)
        self.first_seed = (2 * seed + (not train)) << 23  # torch's CPU generator uses 32 bits of a seed
        channels, height, width = shape
        coarse = torch.randn(_CLASSES, channels, 4, 4, generator=torch.Generator().manual_seed(seed))
        self.patterns = interpolate(coarse, (height, width), mode="bilinear", align_corners=True)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Image `index`, float32 with mean 0 and standard deviation about 1, and its label.

        Raises:
            IndexError: `index` is not below the size.
        """
        if not 0 <= index < self.size:
            raise IndexError(f"example {index} of {self.size}: indices are 0 to {self.size - 1}")
        generator = torch.Generator().manual_seed(self.first_seed + index)
        label, down, right = torch.randint(0, 1 << 30, (3,), generator=generator).tolist()
        pattern = self.patterns[label % _CLASSES].roll((down % 9 - 4, right % 9 - 4), dims=(1, 2))
        noise = torch.randn(pattern.shape, generator=generator)
        return 0.3 * pattern + noise, label % _CLASSES


class SyntheticText(Dataset[tuple[Tensor, Tensor]]):
    """Sequences of tokens for a language model: after each token, one other token follows nine times of ten.

    The tenth time, any of the `TOKENS` follows. So the best accuracy is about 90%, and guessing gets 2%. Sequence
    `index` is drawn from a generator of its own when it is read, as in `Synthetic`. Training and test sequences follow
    the same rule.
    """

    TOKENS = 64  # of the model's vocabulary

    def __init__(self, *, train: bool = True, size: int | None = None, length: int = 32, seed: int = 0) -> None:
        self.size = size if size is not None else (2048 if train else 256)
        self.length = length
        self.first_seed = (2 * seed + (not train)) << 23
        self.next_token = torch.randperm(self.TOKENS, generator=torch.Generator().manual_seed(seed)).tolist()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """The tokens of sequence `index` and, for each, the token that follows: int64, of shape (length,).

        Raises:
            IndexError: `index` is not below the size.
        """
        if not 0 <= index < self.size:
            raise IndexError(f"sequence {index} of {self.size}: indices are 0 to {self.size - 1}")
        generator = torch.Generator().manual_seed(self.first_seed + index)
        draws = torch.randint(0, self.TOKENS, (self.length + 1,), generator=generator).tolist()
        surprises = (torch.rand(self.length + 1, generator=generator) < _SURPRISES).tolist()
        tokens = draws[:1]
        for draw, surprise in zip(draws[1:], surprises[1:], strict=True):
            tokens.append(draw if surprise else self.next_token[tokens[-1]])
        whole = torch.tensor(tokens)
        return whole[:-1], whole[1:]


def _download(name: str, root: Path, *, train: bool) -> Dataset[tuple[Tensor, int]]:
    try:
        from torchvision import datasets, transforms  # type: ignore[import-untyped]  # noqa: PLC0415  # optional
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{name} needs torchvision: pip install 'pytest-ddp[vision]', or use the synthetic data"
        ) from error
    kind = datasets.MNIST if name == "mnist" else datasets.CIFAR10
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(*_MEAN_AND_STD[name])])
    root.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(root / f"{name}.lock"):
            dataset: Dataset[tuple[Tensor, int]] = kind(root, train=train, transform=transform, download=True)
    except (OSError, RuntimeError) as error:
        raise RuntimeError(
            f"{name} is not in {root.absolute()} and could not be downloaded ({error}): "
            "connect to the network, put its files there, or use the synthetic data"
        ) from error
    return dataset
