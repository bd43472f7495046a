"""Datasets are the same on every rank; the synthetic one can be learned; the others' errors say what is missing."""

import hashlib
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

from pytest_ddp import distributed
from reference.data.datasets import MNIST_SHAPE, NAMES, Synthetic, SyntheticText, build
from reference.models import IMAGE_SHAPES
from reference.models import build as build_model

NO_TORCHVISION = "the real datasets are read by torchvision, which is not installed"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """One thread: with small tensors, more threads gain nothing and wait for busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def together(dataset: Synthetic, count: int) -> tuple[Tensor, Tensor]:
    images, labels = zip(*(dataset[index] for index in range(count)), strict=True)
    return torch.stack(images), torch.tensor(labels)


@pytest.mark.parametrize("shape", sorted(set(IMAGE_SHAPES.values())))
def test_synthetic_images_have_the_shape_and_scale_of_the_real_ones(shape: tuple[int, int, int]) -> None:
    images, labels = together(Synthetic(shape), 200)
    assert images.shape == (200, *shape)
    assert images.dtype == torch.float32
    assert images.mean().abs() < 0.1
    assert abs(images.std() - 1) < 0.1
    assert set(labels.tolist()) == set(range(10))


def test_an_example_is_the_same_whenever_it_is_read() -> None:
    first, second = Synthetic(MNIST_SHAPE), Synthetic(MNIST_SHAPE)
    backwards = [second[index] for index in reversed(range(20))][::-1]
    for index, (image, label) in enumerate(backwards):
        assert torch.equal(image, first[index][0])
        assert label == first[index][1]


def test_reading_leaves_torchs_own_generator_alone() -> None:
    state = torch.get_rng_state()
    assert Synthetic(MNIST_SHAPE)[3][0].shape == MNIST_SHAPE
    assert torch.equal(torch.get_rng_state(), state)


@distributed(world_size=3)
def test_every_rank_has_the_same_examples() -> None:
    images, labels = together(Synthetic(MNIST_SHAPE), 20)
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, hashlib.sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest())
    assert len(set(digests)) == 1


def test_examples_differ_between_training_and_test_and_between_seeds() -> None:
    datasets = [Synthetic(MNIST_SHAPE), Synthetic(MNIST_SHAPE, train=False), Synthetic(MNIST_SHAPE, seed=1)]
    seen = {dataset[index][0].numpy().tobytes() for dataset in datasets for index in range(50)}
    assert len(seen) == 150
    images = [together(dataset, 50)[0] for dataset in datasets]
    for one, other in ((0, 1), (0, 2), (1, 2)):  # nor is the noise the same, with another pattern
        assert torch.corrcoef(torch.stack([images[one].flatten(), images[other].flatten()]))[0, 1].abs() < 0.1


def test_a_trained_model_recognizes_images_that_it_has_not_seen() -> None:
    train, test = together(Synthetic(MNIST_SHAPE), 4096), together(Synthetic(MNIST_SHAPE, train=False), 512)
    torch.manual_seed(0)
    model = build_model("mnist-mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    assert accuracy(model, *test) < 0.25
    for _ in range(2):
        for images, labels in zip(train[0].split(64), train[1].split(64), strict=True):
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
    assert accuracy(model, *test) > 0.5


def accuracy(model: torch.nn.Module, images: Tensor, labels: Tensor) -> float:
    return (model(images).argmax(dim=1) == labels).double().mean().item()


def test_a_synthetic_dataset_ends() -> None:
    dataset = Synthetic(MNIST_SHAPE, size=3)
    assert len(list(dataset)) == len(dataset) == 3
    for index in (-1, 3):
        with pytest.raises(IndexError, match=f"example {index} of 3: indices are 0 to 2"):
            dataset[index]


def test_synthetic_training_and_test_examples_are_built_by_name() -> None:
    assert [len(build("synthetic", train=train, shape=MNIST_SHAPE)) for train in (True, False)] == [8192, 2048]


def test_the_error_for_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="there is no dataset 'imagenet'; there are synthetic, mnist, cifar10"):
        build("imagenet")


def write_mnist(folder: Path, images: Tensor, labels: Tensor) -> None:
    """Files in MNIST's format, in the folder of torchvision's downloads."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(
            struct.pack(">4i", 2051, *images.shape) + images.numpy().tobytes()
        )
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(
            struct.pack(">2i", 2049, len(labels)) + labels.numpy().tobytes()
        )


@distributed(world_size=2)
def test_mnist_is_read_normalized_by_all_ranks_at_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("torchvision", reason=NO_TORCHVISION)
    folder = tmp_path_factory.mktemp("data")
    write_mnist(folder, torch.full((3, 28, 28), 255, dtype=torch.uint8), torch.tensor([4, 0, 9], dtype=torch.uint8))
    for train in (True, False):
        dataset = build("mnist", folder, train=train)
        image, label = dataset[2]
        assert image.shape == MNIST_SHAPE
        assert label == 9
        torch.testing.assert_close(image, torch.full(MNIST_SHAPE, (1 - 0.1307) / 0.3081))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "synthetic"])
def test_without_network_the_synthetic_data_is_offered(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torchvision", reason=NO_TORCHVISION)

    def no_network(*_args: object, **_kwargs: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    with pytest.raises(
        RuntimeError, match=f"{name} is not in {tmp_path} and could not be downloaded (?s:.*)synthetic data"
    ):
        build(name, tmp_path)


def test_without_torchvision_the_synthetic_data_is_offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ModuleNotFoundError, match=r"cifar10 needs torchvision: .* or use the synthetic data"):
        build("cifar10", tmp_path)


def test_synthetic_text_follows_one_rule_nine_times_of_ten() -> None:
    for train in (True, False):
        text = SyntheticText(train=train, size=50, length=40)
        tokens, following = (torch.stack(parts) for parts in zip(*(text[i] for i in range(50)), strict=True))
        assert tokens.shape == following.shape == (50, 40)
        assert torch.equal(tokens[:, 1:], following[:, :-1])
        assert 0 <= int(tokens.min()) <= int(tokens.max()) < SyntheticText.TOKENS
        expected = torch.tensor(text.next_token)[tokens]
        assert 0.86 < (expected == following).double().mean() < 0.95


def test_synthetic_text_is_the_same_in_any_order_and_test_sequences_differ() -> None:
    text = SyntheticText()
    assert torch.equal(text[7][0], SyntheticText()[7][0])
    assert not torch.equal(text[7][0], SyntheticText(train=False)[7][0])
    with pytest.raises(IndexError, match="sequence 2048 of 2048"):
        text[len(text)]
