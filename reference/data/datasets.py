"""The data that the references train on: MNIST, CIFAR-10, and a synthetic stand-in that needs no network.

Every rank builds the same dataset; a sampler decides who reads which examples. Ranks that share a disk download one
after the other, so that the first one does and the others find the files.
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
        train: training examples; else test examples.
        shape: of the synthetic images; the real ones have their own.

    Raises:
        ValueError: there is no such dataset.
        RuntimeError: the files are not in `root` and cannot be downloaded.
        ModuleNotFoundError: torchvision, which knows the real datasets, is not installed.
    """
    if name not in NAMES:
        raise ValueError(f"there is no dataset {name!r}; there are {', '.join(NAMES)}")
    if name == "synthetic":
        return Synthetic(shape, train=train)
    return _download(name, Path(root), train=train)


class Synthetic(Dataset[tuple[Tensor, int]]):
    """Images that can be told apart but not at a glance: a pattern for each class, moved about, under heavy noise.

    Guessing gets a tenth of the labels right; the CNN about 80% after one epoch of 128 steps and 98% after two, the
    MLP 80%, since it must learn every place at which a pattern may be. Example `index` is drawn from a generator of its
    own, so it is the same on every rank and in every worker process, in whatever order examples are read, and takes no
    memory before. Training and test examples share the patterns and nothing else.
    """

    def __init__(
        self, shape: Shape = CIFAR10_SHAPE, *, train: bool = True, size: int | None = None, seed: int = 0
    ) -> None:
        self.size = size if size is not None else (8192 if train else 2048)
        self.first_seed = (2 * seed + (not train)) << 23  # torch's generator on CPU looks at 32 bits only
        channels, height, width = shape
        coarse = torch.randn(_CLASSES, channels, 4, 4, generator=torch.Generator().manual_seed(seed))
        self.patterns = interpolate(coarse, (height, width), mode="bilinear", align_corners=True)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Image `index`, float32 with mean 0 and standard deviation about 1, and its label.

        Raises:
            IndexError: there are not so many.
        """
        if not 0 <= index < self.size:
            raise IndexError(f"example {index} of {self.size}")
        generator = torch.Generator().manual_seed(self.first_seed + index)
        label, down, right = torch.randint(0, 1 << 30, (3,), generator=generator).tolist()
        pattern = self.patterns[label % _CLASSES].roll((down % 9 - 4, right % 9 - 4), dims=(1, 2))
        noise = torch.randn(pattern.shape, generator=generator)
        return 0.3 * pattern + noise, label % _CLASSES


def _download(name: str, root: Path, *, train: bool) -> Dataset[tuple[Tensor, int]]:
    try:
        from torchvision import datasets, transforms  # type: ignore[import-untyped]  # noqa: PLC0415  # optional
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{name} is read by torchvision: pip install 'pytest-ddp[vision]', or use the synthetic data"
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
