"""The command line of `python -m reference.train`: what can be chosen, and what is refused.

Options and advice: docs/training.md.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reference import models
from reference.data import datasets
from reference.ddp.bucketed import BucketedDDP
from reference.ddp.flat import FlatDDP
from reference.ddp.naive import NaiveDDP
from reference.ddp.overlapped import OverlappedDDP
from reference.fsdp.fsdp import FSDP
from reference.training.mixed_precision import Amp

BUCKET_SIZE_MB = 25  # torch's default

WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "overlapped": OverlappedDDP,
    "bucketed": lambda module: BucketedDDP(module, BUCKET_SIZE_MB),
    "torch": DistributedDataParallel,
    "fsdp": FSDP,
}


@dataclass(frozen=True)
class Options:
    """The options of the command line; `--help` explains each."""

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
    """Read the command line. Exits with a message if an option is wrong, or two options contradict each other.

    Args:
        arguments: the words of the command line; by default those of this process.
    """
    parser = _parser()
    options = Options(**vars(parser.parse_args(arguments)))
    if options.ddp == "fsdp" and options.sharded:
        parser.error("--ddp fsdp shards the optimizer's state already: leave --sharded out")
    if options.checkpoint_every is not None and options.checkpoint is None:
        parser.error("--checkpoint-every needs a file to save to: add --checkpoint FILE")
    if options.model not in models.IMAGE_SHAPES and options.data != "synthetic":
        parser.error(f"{options.model} trains on text, and {options.data} has images: use --data synthetic")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reference.train",
        description="Train an image classifier or a language model on several ranks, and print its accuracy after each "
        "epoch. Ctrl-C ends the training after the current step and leaves a checkpoint.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", choices=models.NAMES, default="cnn", help="the model; transformers predict the next token")
    add(
        "--data",
        choices=datasets.NAMES,
        default="synthetic",
        help="the dataset; synthetic images or text need no network",
    )
    add("--data-root", type=Path, default=Path("data"), metavar="FOLDER", help="folder of downloaded datasets")
    add("--ddp", choices=[*WRAPPERS], default="bucketed", help="the data-parallel wrapper")
    add("--sharded", action="store_true", help="shard the optimizer's state over the ranks")
    add("--sync-bn", action="store_true", help="normalize over the batches of all ranks in batch norm layers")
    add("--amp", choices=("off", "bf16", "fp16"), default="off", help="compute in 16 bits; fp16 needs a GPU")
    add("--epochs", type=_positive, default=2, metavar="N", help="in all, those of a resumed checkpoint included")
    add("--batch-size", type=_positive, default=32, metavar="N", help="examples per rank and microbatch")
    add("--accumulate", type=_positive, default=1, metavar="N", help="microbatches per step")
    add("--lr", type=float, default=1e-3, help="learning rate of AdamW; see docs/training.md for larger batches")
    add("--seed", type=int, default=0, help="seed of weights, shuffling and dropout")
    add("--workers", type=int, default=0, metavar="N", help="processes per rank that load data")
    add("--checkpoint", type=Path, metavar="FILE", help="save to this file after every epoch")
    add("--checkpoint-every", type=_positive, metavar="N", help="save after every N steps, too")
    add("--resume", type=Path, metavar="FILE", help="continue from this checkpoint; only rank 0 reads the file")
    add("--world-size", type=_positive, metavar="N", help="ranks to start here; leave out under torchrun")
    add("--backend", help="backend of the process group (default: nccl with CUDA, else gloo)")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number
