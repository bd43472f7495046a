"""On GPUs the references do what they do on CPUs, and their host waits for nothing that it need not wait for."""

from pathlib import Path

import launched
import pytest
import torch
from reference_models import mlp, seeded
from side_by_side import sgd
from torch import nn
from torch.optim import SGD

from pytest_ddp import DDPContext, distributed
from reference.communication.launch import launch
from reference.communication.process_group import current_device
from reference.ddp.bucketed import BucketedDDP
from reference.training.mixed_precision import precision

pytestmark = pytest.mark.gpu
BYTES = 8
REPOSITORY = Path(__file__).parents[2]


@distributed(world_size=1, device="cuda")
def test_the_current_device_is_this_ranks_gpu(ddp: DDPContext) -> None:
    assert current_device() == ddp.device
    assert current_device().type == "cuda"


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@distributed(world_size=1, backend="nccl", device="cuda")
def test_on_a_gpu_the_host_waits_for_nothing(ddp: DDPContext) -> None:
    model = BucketedDDP(seeded(mlp, seed=0).to(ddp.device), 45 * BYTES / 1024**2)
    optimizer = sgd(model)
    inputs = torch.ones(3, 4, dtype=torch.float64, device=ddp.device)
    for mode in ("default", "error"):  # the first step may wait
        torch.cuda.set_sync_debug_mode(mode)
        try:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            model.finish_gradient_synchronization()
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@distributed(world_size=2, backend="gloo", device="cuda")
def test_gradients_on_gpus_are_averaged_over_gloo_too(ddp: DDPContext) -> None:
    alone, model = (seeded(mlp, seed=0).to(ddp.device) for _ in range(2))
    wrapped = BucketedDDP(model, 45 * BYTES / 1024**2)
    inputs = torch.arange(12, dtype=torch.float64, device=ddp.device).view(3, 4)
    wrapped(inputs * (1 + 2 * ddp.rank)).sum().backward()
    wrapped.finish_gradient_synchronization()
    (sum(alone(inputs * (1 + 2 * rank)).sum() for rank in range(2)) / 2).backward()
    for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, expected.grad, rtol=1e-12, atol=1e-12)


@distributed(world_size=1, device="cuda")
@pytest.mark.parametrize(("amp", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_both_precisions_train_on_a_gpu(amp, dtype, ddp: DDPContext):
    context, own = precision(amp, ddp.device)
    weight = nn.Parameter(torch.ones(2, 2, device=ddp.device))
    optimizer = SGD([weight], lr=0.25)
    with context:
        out = torch.eye(2, device=ddp.device) @ weight
    assert out.dtype == dtype
    torch.autograd.backward(own.scale(out.float().mean()))  # the scale, 65536, is infinite in float16
    own.step(optimizer)
    own.update()
    torch.testing.assert_close(weight.detach().cpu(), torch.full((2, 2), 1 - 0.25 / 4))


@pytest.fixture
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY}:{Path(launched.__file__).parent}")


def places(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.iterdir())]


@pytest.mark.usefixtures("_importable")
@pytest.mark.parametrize("start", ["spawn", "processes"])
def test_a_rank_has_a_gpu_over_nccl(start: str, tmp_path: Path) -> None:
    launch(launched.write_place, 1, tmp_path, 21, start=start)
    assert places(tmp_path) == ["0 of 1, local 0 on cuda, sum 21, nccl"]


@pytest.mark.usefixtures("_importable")
def test_ranks_share_a_gpu_over_gloo(tmp_path: Path) -> None:
    launch(launched.write_place, 2, tmp_path, 21, backend="gloo", device="cuda")
    assert places(tmp_path) == [f"{rank} of 2, local {rank} on cuda, sum 42, gloo" for rank in (0, 1)]
