"""The models that the references train: their shapes and sizes, and the causality of the transformer."""

import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from reference.models import IMAGE_SHAPES, NAMES, build
from reference.models.transformer import SIZES, Attention, Size, Transformer, rotary_angles, rotate

TINY = Size(d_model=16, d_ff=24, layers=2, heads=2)
MILLIONS = {"tiny": 1, "50m": 52, "small": 129, "medium": 423, "large": 969, "xl": 1998, "xl-0.5b": 501, "2.7b": 3407}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """One thread: with small tensors, more threads gain nothing and wait for busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build_or_skip(name: str) -> nn.Module:
    if name == "resnet18":
        pytest.importorskip("torchvision", reason="resnet18 is torchvision's, which is not installed")
    return build(name)


@pytest.mark.parametrize("name", IMAGE_SHAPES)
def test_models_for_images_give_ten_logits(name: str) -> None:
    model = build_or_skip(name)
    assert model(torch.zeros(2, *IMAGE_SHAPES[name])).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("cnn", 62_006), ("mnist-mlp", 269_322), ("mnist-convnet", 29_034), ("resnet18", 11_173_962)],
)
def test_models_for_images_have_the_published_sizes(name: str, parameters: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in build_or_skip(name).parameters()) == parameters


def test_the_resnet_keeps_its_resolution_up_to_the_first_block() -> None:
    model = build_or_skip("resnet18")
    sizes = []
    model.layer1.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].shape[2:]))
    model(torch.zeros(1, 3, 32, 32))
    assert sizes == [(32, 32)]


@pytest.mark.parametrize("size", SIZES)
def test_the_largest_models_take_no_memory_on_the_meta_device(size: str) -> None:
    with torch.device("meta"):
        model = build(f"transformer-{size}")
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == MILLIONS[size]


def test_every_name_is_one_of_images_or_a_size_of_transformer() -> None:
    assert set(NAMES) == {*IMAGE_SHAPES, *(f"transformer-{size}" for size in SIZES)}


def test_the_error_for_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"there is no model 'vgg'; there are cnn, mnist-mlp, .*transformer-2\.7b"):
        build("vgg")


def test_without_torchvision_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ModuleNotFoundError, match=r"resnet18 needs torchvision: pip install 'pytest-ddp\[vision\]'"):
        build("resnet18")


@pytest.mark.parametrize("name", ["cnn", "mnist-mlp"])
def test_the_same_seed_gives_the_same_parameters(name: str) -> None:
    torch.manual_seed(3)
    first = build(name).state_dict()
    torch.manual_seed(3)
    for one, other in zip(first.values(), build(name).state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_a_transformer_gives_logits_for_every_position() -> None:
    tokens = torch.randint(50, (3, 7))
    assert Transformer(TINY, vocabulary=50)(tokens).shape == (3, 7, 50)


def test_a_transformer_sees_no_later_token() -> None:
    model = Transformer(TINY, vocabulary=50)
    tokens = torch.randint(50, (2, 8))
    changed = tokens.clone()
    changed[:, 5:] = (tokens[:, 5:] + 1) % 50
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert (before[:, 5:] - after[:, 5:]).abs().amin(dim=(0, 2)).min() > 0


def test_a_transformer_has_no_buffers_and_gradients_for_all_parameters() -> None:
    model = Transformer(TINY, vocabulary=50)
    model(torch.randint(50, (2, 8))).logsumexp(-1).sum().backward()
    assert not list(model.buffers())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_a_transformer_built_on_meta_can_be_given_memory_later() -> None:
    with torch.device("meta"):
        model = Transformer(TINY, vocabulary=50)
    source = Transformer(TINY, vocabulary=50)
    model.to_empty(device="cpu").load_state_dict(source.state_dict())
    tokens = torch.randint(50, (2, 8))
    torch.testing.assert_close(model(tokens), source(tokens))


def test_rotation_keeps_lengths_and_depends_on_distances_alone() -> None:
    query, key = torch.randn(2, 1, 8, dtype=torch.float64)
    angles = rotary_angles(6, 8, torch.device("cpu")).double()
    rotated_query, rotated_key = rotate(query.expand(6, 8), angles), rotate(key.expand(6, 8), angles)
    torch.testing.assert_close(rotated_query.norm(dim=-1), query.norm().expand(6))
    scores = rotated_query @ rotated_key.T
    for distance in range(-5, 6):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along))
    assert not torch.allclose(scores[0, 0], scores[0, 1])


def test_attention_is_what_its_definition_says() -> None:
    attention, x = Attention(16, heads=2).double(), torch.randn(1, 5, 16, dtype=torch.float64)
    angles = rotary_angles(5, 8, x.device).double()
    query, key, value = (layer(x).view(5, 2, 8) for layer in (attention.query, attention.key, attention.value))
    heads = []
    for head in range(2):
        scores = rotate(query[:, head], angles) @ rotate(key[:, head], angles).T / 8**0.5
        allowed = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
        heads.append(allowed.softmax(-1) @ value[:, head])
    torch.testing.assert_close(attention(x, angles), attention.output(torch.cat(heads, dim=-1))[None])
