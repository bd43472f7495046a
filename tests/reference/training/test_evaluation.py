"""The accuracy is that of all samples, on any ranks."""

import math
from collections.abc import Iterator

import pytest
import torch
from reference_wrappers import WRAPPERS, Wrapper
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pytest_ddp import DDPContext, distributed
from pytest_ddp.operations.fingerprint import Fingerprint
from pytest_ddp.rank.collective_hooks import watch_collectives
from reference.adapters import evaluate
from reference.data.samplers import EvaluationSampler

CLASSES = 3


class Echo(nn.Module):
    """Its scores make the input the answer. It records the mode in which it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.frozen = nn.BatchNorm1d(CLASSES).eval()
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append((self.training, torch.is_grad_enabled()))
        return nn.functional.one_hot(x, CLASSES) * self.weight


def batches(answers: list[int], labels: list[int], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(answers), size):
        yield torch.tensor(answers[start : start + size]), torch.tensor(labels[start : start + size])


@distributed(world_size=[1, 2, 3, 4])
def test_it_counts_samples_not_batches_and_not_ranks(ddp: DDPContext):
    answers, labels = [0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 1, 2, 0, 0]
    mine = list(EvaluationSampler(labels))
    share = batches([answers[i] for i in mine], [labels[i] for i in mine], size=2)
    assert evaluate(Echo(), share) == 4 / 7
    assert evaluate(Echo(), batches([1] * 3, [1] * 3, size=2) if ddp.rank == 0 else []) == 1.0


@distributed(world_size=2)
def test_counts_are_in_one_collective_after_the_last_batch(ddp: DDPContext):
    seen = list[Fingerprint]()
    with watch_collectives(seen.append):
        evaluate(Echo(), batches([1] * (5 + ddp.rank), [1] * (5 + ddp.rank), size=2))
    buffers_of_each_dtype = ["broadcast", "broadcast"]
    assert [one.op for one in seen] == [*buffers_of_each_dtype, "all_reduce"]


@distributed(world_size=2)
@pytest.mark.parametrize("wrap", [nn.Sequential, DistributedDataParallel], ids=["bare", "torch"])
def test_all_ranks_evaluate_with_the_buffers_of_rank_0(wrap, ddp: DDPContext):
    layer = nn.BatchNorm1d(2)
    model = wrap(layer)
    layer.running_mean.copy_(torch.tensor([0.0, 5.0 * ddp.rank]))  # with rank 1's the answer would be 0
    assert evaluate(model, [(torch.tensor([[0.0, 1.0]]), torch.tensor([1]))]) == 1.0


@distributed(world_size=2)
def test_labels_may_have_more_dimensions(ddp: DDPContext):
    assert evaluate(Echo(), [(torch.tensor([[0, 1], [2, ddp.rank]]), torch.tensor([[0, 1], [2, 0]]))]) == 7 / 8


@distributed(world_size=2)
def test_the_accuracy_of_no_samples_is_nan():
    assert math.isnan(evaluate(Echo(), []))


def test_one_process_needs_no_group():
    assert evaluate(Echo(), batches([0, 1], [0, 2], size=1)) == 0.5


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_every_submodule_is_restored_even_after_an_error(training):
    model = Echo().train(training)
    model.frozen.eval()
    evaluate(model, batches([0], [0], size=1))
    assert model.modes == [(False, False)]
    assert (model.training, model.frozen.training) == (training, False)
    with pytest.raises(RuntimeError):
        evaluate(model, [(torch.tensor([[CLASSES]]), torch.tensor([0]))])
    assert (model.training, model.frozen.training) == (training, False)
    assert torch.is_grad_enabled()


@distributed(world_size=2)
@pytest.mark.parametrize(
    "wrap", [*(w.wrap for w in WRAPPERS.values()), DistributedDataParallel], ids=[*WRAPPERS, "torch"]
)
def test_wrapped_models_may_have_different_numbers_of_batches(wrap: Wrapper, ddp: DDPContext):
    model = Echo()
    wrapped = wrap(model)
    assert evaluate(wrapped, batches([2] * (2 + ddp.rank), [2] * (2 + ddp.rank), size=1)) == 1.0
    assert not any(training for training, _ in model.modes)
