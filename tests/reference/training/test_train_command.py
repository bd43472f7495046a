"""`python -m reference.train`: by itself, under torchrun, on nodes of different sizes, and as its page calls it."""

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from side_by_side import assert_same_on_all_ranks
from subgroups import subgroups_destroyed
from torch import nn

from pytest_ddp import DDPContext, distributed
from reference import models
from reference.data import datasets
from reference.data.datasets import Synthetic, SyntheticText
from reference.fsdp.fsdp import FSDP
from reference.training import train as train_module
from reference.training import trainer as trainer_module
from reference.training.options import WRAPPERS, Options, parse
from reference.training.train import make_evaluation_loader, make_trainer, mean_cross_entropy

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
CPU = torch.device("cpu")


def start(command: str, folder: Path, **more: Any) -> subprocess.Popen[str]:
    """Start a command of the page in a folder, with this Python, without the environment variables of pytest's ranks.

    It uses CPUs, because there may be fewer GPUs than ranks.
    """
    tool, _, rest = command.partition(" ")
    words = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}[tool]
    kept = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE", "MASTER_PORT"}}
    return subprocess.Popen(
        [*words, *rest.split()],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **more,
    )


def run(folder: Path, *commands: str) -> list[str]:
    """Run commands at the same time. Returns the output of each."""
    processes = [start(command, folder) for command in commands]
    try:
        outputs = [process.communicate(timeout=200)[0] for process in processes]
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return outputs


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accuracies(output: str) -> list[float]:
    """The printed accuracies, in percent: one line for each epoch, with any number of ranks."""
    line = r"^epoch (\d+)/\d+: loss [\d.]+, accuracy ([\d.]+)%, \d+ examples/s on \d+ ranks$"
    lines = re.findall(line, output, re.MULTILINE)
    numbers = [int(number) for number, _ in lines]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return [float(accuracy) for _, accuracy in lines]


# The whole command


def test_two_epochs_on_two_ranks_learn_the_synthetic_data(tmp_path: Path) -> None:
    command = "python -m reference.train --model mnist-mlp --world-size 2 --epochs 2 --batch-size 64"
    [output] = run(tmp_path, f"{command} --sharded --accumulate 2 --checkpoint last.pt")
    assert output.startswith(
        "mnist-mlp on synthetic, bucketed over 2 ranks (gloo), 64 batches of 64 per rank and epoch"
    )
    assert "256 examples a step" in output
    first, second = accuracies(output)
    assert 50 < first < second  # guessing gets 10%
    progress = torch.load(tmp_path / "last.pt", weights_only=True)["others"]["progress"]
    assert progress == {"epoch": 2, "examples": 0, "steps": 64}


COMMANDS = [block.splitlines() for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]


@pytest.mark.long
@pytest.mark.parametrize("commands", COMMANDS, ids=lambda commands: re.sub(r"[^\w-]+", "_", commands[0])[-60:])
def test_the_commands_of_the_page_train(commands: list[str], tmp_path: Path) -> None:
    port = str(free_port())
    nodes = [command.replace("29517", port) for command in commands if "--nnodes" in command]
    outputs = run(tmp_path, *nodes) if nodes else [run(tmp_path, command)[0] for command in commands]
    if nodes:
        assert "over 7 ranks" in outputs[0]
        assert "epoch" not in outputs[1]  # rank 0 is on the first node
        outputs = outputs[:1]
    for output in outputs:
        assert accuracies(output)[-1] > 50


@pytest.mark.long
def test_a_killed_job_resumes_to_the_parameters_of_one_that_was_not(tmp_path: Path) -> None:
    command = "torchrun --nproc-per-node 2 -m reference.train --model mnist-mlp --epochs 2 --checkpoint-every 5"
    run(tmp_path, f"{command} --checkpoint whole.pt")
    job = start(f"{command} --checkpoint cut.pt", tmp_path)
    while not (tmp_path / "cut.pt").exists():
        assert job.poll() is None
    job.kill()
    job.communicate()
    run(tmp_path, f"{command} --checkpoint cut.pt --resume cut.pt")
    whole, resumed = (torch.load(tmp_path / name, weights_only=True) for name in ("whole.pt", "cut.pt"))
    assert resumed["others"] == whole["others"]
    for name, value in whole["model"].items():
        assert torch.equal(resumed["model"][name], value)


@distributed(world_size=1)
def test_the_warmup_of_the_page_works() -> None:
    [snippet] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"global_batch": 256, "reference_batch": 64, "steps_per_epoch": 2}
    names |= {"model": nn.Linear(1, 1), "SGD": torch.optim.SGD, "loss_fn": None, "loader": None}
    with patch("reference.training.trainer.Trainer.__post_init__"):
        exec("from reference.training.trainer import Trainer\n" + snippet, names)  # noqa: S102  the page's own
    rates = []
    for _ in range(12):
        rates.append(names["optimizer"].param_groups[0]["lr"])
        names["optimizer"].step()
        names["trainer"].scheduler.step()
    assert rates == pytest.approx([0.1 + 0.3 * min(step, 10) / 10 for step in range(12)])


# Its components


def small(**options: Any) -> Options:
    """Options of a training that takes a few seconds."""
    return replace(parse(["--model", "mnist-mlp", "--batch-size", "8", "--epochs", "1"]), **options)


def normalized() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


def few(_name: str, _root: Path, *, train: bool, shape: datasets.Shape) -> Synthetic:
    return Synthetic(shape, train=train, size=96 if train else 61)  # ranks' evaluation data differ by one batch


COMBINATIONS: dict[str, dict[str, Any]] = {
    **{name: {"ddp": name} for name in WRAPPERS},
    "everything": {"sharded": True, "amp": "bf16", "accumulate": 4, "sync_bn": True},
    "torch, everything": {"ddp": "torch", "sharded": True, "amp": "bf16", "accumulate": 4, "sync_bn": True},
    "fsdp, everything": {"ddp": "fsdp", "amp": "bf16", "accumulate": 4, "sync_bn": True},
}


@distributed(world_size=3)
@pytest.mark.parametrize("options", COMBINATIONS.values(), ids=COMBINATIONS)
def test_components_work_together(options: dict[str, Any], ddp: DDPContext) -> None:
    chosen = small(batch_size=4, checkpoint=ddp.shared_path / "last.pt", **options)
    built_small = patch.object(datasets, "build", few), patch.object(models, "build", lambda _: normalized())
    with subgroups_destroyed(), built_small[0], built_small[1]:
        trainer = make_trainer(chosen, CPU)
        before = [p.detach().clone() for p in trainer.model.parameters()]
        [result] = trainer.train(1, make_evaluation_loader(chosen))
    assert trainer.progress.steps == 8 // chosen.accumulate
    assert all((p != was).any() for p, was in zip(trainer.model.parameters(), before, strict=True) if p.numel())
    results: list[Any] = [None] * ddp.world_size
    dist.all_gather_object(results, result)
    assert results == [result] * ddp.world_size
    if chosen.ddp != "fsdp":
        assert_same_on_all_ranks(trainer.model.state_dict().values())


@distributed(world_size=2)
def test_a_transformer_learns_to_predict_tokens(ddp: DDPContext) -> None:
    text = partial(SyntheticText, size=64, length=16)
    chosen = small(model="transformer-tiny", batch_size=4, lr=0.01, epochs=2)
    with patch.object(datasets, "SyntheticText", text):
        results = make_trainer(chosen, CPU).train(2, make_evaluation_loader(chosen))
    assert [result.epoch for result in results] == [1, 2]
    first, second = (result.loss or 99 for result in results)
    assert second < first < 10  # guessing gets log(10000) = 9.2
    assert results[1].accuracy is not None
    del ddp


@distributed(world_size=2)
def test_an_interrupted_training_says_so_and_leaves_a_checkpoint(
    ddp: DDPContext, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ddp.shared_path)

    def interrupt_rank_1(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if ddp.rank == 1:
            signal.raise_signal(signal.SIGINT)
        return mean_cross_entropy(outputs, targets)

    built_small = patch.object(datasets, "build", few), patch.object(models, "build", lambda _: normalized())
    with built_small[0], built_small[1], patch.object(train_module, "mean_cross_entropy", interrupt_rank_1):
        train_module.train(small(batch_size=4, epochs=5))
    assert signal.getsignal(signal.SIGINT) is not None
    output = capfd.readouterr().out
    sentence = (
        "Stopped by Ctrl-C in epoch 1, after step 2. Everything up to this step is in interrupted.pt: to continue, "
        "give the same options and --resume interrupted.pt"
    )
    assert (sentence in output) == (ddp.rank == 0)
    progress = torch.load("interrupted.pt", weights_only=True)["others"]["progress"]
    assert (progress["epoch"], progress["steps"]) == (0, 2)


@distributed(world_size=2)
@pytest.mark.parametrize("checkpoint", [None, "last.pt"])
def test_an_interruption_in_the_last_evaluation_leaves_a_checkpoint_too(
    ddp: DDPContext, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, checkpoint: str | None
) -> None:
    monkeypatch.chdir(ddp.shared_path)

    def interrupted(*_: Any) -> float:
        if ddp.rank == ddp.world_size - 1:
            signal.raise_signal(signal.SIGINT)
        return 0.5

    built_small = patch.object(datasets, "build", few), patch.object(models, "build", lambda _: normalized())
    with built_small[0], built_small[1], patch.object(trainer_module, "evaluate", interrupted):
        train_module.train(small(batch_size=4, epochs=1, checkpoint=checkpoint and Path(checkpoint)))
    path = checkpoint or "interrupted.pt"
    progress = torch.load(path, weights_only=True)["others"]["progress"]
    assert (progress["epoch"], progress["examples"]) == (1, 0)
    sentence = (
        f"Stopped by Ctrl-C after the last step, {progress['steps']}. Everything up to this step is in {path}: to "
        f"train on, give more --epochs and --resume {path}"
    )
    assert (sentence in capfd.readouterr().out) == (ddp.rank == 0)


@pytest.mark.long
def test_ctrl_c_ends_all_ranks_between_two_steps(tmp_path: Path) -> None:
    command = "python -m reference.train --model mnist-mlp --world-size 2 --epochs 50"
    job = start(f"{command} --checkpoint last.pt --checkpoint-every 5", tmp_path, start_new_session=True)
    while not (tmp_path / "last.pt").exists():
        assert job.poll() is None
    os.killpg(job.pid, signal.SIGINT)  # as a terminal does
    output, _ = job.communicate(timeout=200)
    assert job.returncode == 130, output
    assert "Traceback" not in output
    [steps] = re.findall(r"Stopped by Ctrl-C in epoch 1, after step (\d+)\.", output)
    state = torch.load(tmp_path / "last.pt", weights_only=True)
    assert state["others"]["progress"]["steps"] == int(steps)


def test_the_command_offers_every_wrapper() -> None:
    assert tuple(WRAPPERS) == ("naive", "flat", "overlapped", "bucketed", "torch", "fsdp")
    assert WRAPPERS["fsdp"] is FSDP


@distributed(world_size=2)
def test_a_dataset_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"8192 examples do not fill a batch of 5000 on each of 2 ranks: use .* 4096"):
        make_trainer(small(batch_size=5000), CPU)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--ddp fsdp --sharded", "--ddp fsdp shards the optimizer's state already: leave --sharded out"),
        ("--checkpoint-every 5", "--checkpoint-every needs a file to save to: add --checkpoint FILE"),
        ("--accumulate 0", "argument --accumulate: 0 is less than 1"),
        ("--model vgg", "invalid choice: 'vgg'"),
        ("--model transformer-tiny --data mnist", "transformer-tiny trains on text, and mnist has images: use --data"),
    ],
)
def test_contradicting_options_are_refused(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(line.split())
    assert message in capsys.readouterr().err
