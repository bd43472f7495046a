"""The command line of `python -m reference.train`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reference import models
from reference.data import datasets
from reference.training.mixed_precision import Amp

DDP = ("naive", "flat", "overlapped", "bucketed", "torch", "fsdp")


@dataclass(frozen=True)
class Options:
    """What the command line says; see `parse`."""

    model: str
    data: str
    data_root: Path
    ddp: str
    sharded: bool
    sync_bn: bool
    amp: Amp
    epochs: int
    batch_size: int
    accumulate: int
    lr: float
    seed: int
    workers: int
    checkpoint: Path | None
    checkpoint_every: int | None
    resume: Path | None
    world_size: int | None
    backend: str | None


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; leave with a message if it makes no sense.

    Args:
        arguments: its words; by default those of this process.
    """
    parser = _parser()
    options = Options(**vars(parser.parse_args(arguments)))
    if options.ddp == "fsdp" and options.sharded:
        parser.error("--ddp fsdp shards the optimizer's state already: leave --sharded out")
    if options.checkpoint_every is not None and options.checkpoint is None:
        parser.error("--checkpoint-every needs a file to save to: add --checkpoint FILE")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reference.train",
        description="Train a model for images on several ranks, and tell its accuracy after each epoch.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", choices=[*models.IMAGE_SHAPES], default="cnn", help="what to train")
    add("--data", choices=datasets.NAMES, default="synthetic", help="on what; synthetic data need no network")
    add("--data-root", type=Path, default=Path("data"), metavar="FOLDER", help="where downloads are")
    add("--ddp", choices=DDP, default="bucketed", help="which data-parallel wrapper")
    add("--sharded", action="store_true", help="shard the optimizer's state over the ranks")
    add("--sync-bn", action="store_true", help="batch normalization over the batches of all ranks")
    add("--amp", choices=("off", "bf16", "fp16"), default="off", help="compute in 16 bits; fp16 needs a GPU")
    add("--epochs", type=_positive, default=2, metavar="N", help="in all, those of a resumed checkpoint included")
    add("--batch-size", type=_positive, default=32, metavar="N", help="examples per rank and microbatch")
    add("--accumulate", type=_positive, default=1, metavar="N", help="microbatches in one step")
    add("--lr", type=float, default=1e-3, help="learning rate of AdamW; see docs/training.md for larger batches")
    add("--seed", type=int, default=0, help="of weights, shuffling and dropout")
    add("--workers", type=int, default=0, metavar="N", help="processes per rank that load data")
    add("--checkpoint", type=Path, metavar="FILE", help="save to it after every epoch")
    add("--checkpoint-every", type=_positive, metavar="N", help="and after every N steps")
    add("--resume", type=Path, metavar="FILE", help="go on from it; only rank 0 needs to see it")
    add("--world-size", type=_positive, metavar="N", help="ranks to start here; leave out under torchrun")
    add("--backend", help="of the process group; by default NCCL with CUDA, else gloo")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number
