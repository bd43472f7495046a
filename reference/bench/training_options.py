"""The options of the commands that train a model on ranks, and the ranks that these commands start."""

import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable

from reference.bench.contestants import Workload, size_of
from reference.bench.method import cores
from reference.bench.ranks import on_ranks, ranks_to_start
from reference.bench.result import Raw
from reference.bench.submission import failed_functions, submission_path

BUCKET_MB = 25.0  # torch's default


def at_least(lowest: int) -> Callable[[str], int]:
    """The type of an option that is a whole number, and not below the lowest one."""

    def number(given: str) -> int:
        if not given.isdecimal() or int(given) < lowest:
            raise ArgumentTypeError(f"{given}: give a whole number of at least {lowest}")
        return int(given)

    return number


def positive(given: str) -> float:
    """The type of an option that is a number above zero."""
    try:
        if 0 < float(given) < math.inf:
            return float(given)
    except ValueError:
        pass
    raise ArgumentTypeError(f"{given}: give a number above 0")


def add_training_options(command: ArgumentParser, *, samples: int = 2, words: int = 64) -> None:
    """Add the options that every command has which trains: the batch, the ranks, and a submission to train too."""
    command.add_argument("--samples", type=at_least(1), default=samples, help="sequences in the batch of a rank")
    command.add_argument("--words", type=at_least(1), default=words, help="tokens in a sequence")
    command.add_argument(
        "--submission", type=submission_path, metavar="PATH", help="measure a submission beside the references"
    )
    add_rank_options(command)


def add_rank_options(command: ArgumentParser) -> None:
    """Add the options that say how many ranks to start, and how they communicate."""
    command.add_argument(
        "--world-size", type=at_least(1), help="ranks to start (default: 2, with nccl at most one per GPU)"
    )
    command.add_argument("--backend", help="process group backend (default: nccl with CUDA, else gloo)")
    command.add_argument("--device", choices=["cpu", "cuda"], help="of the ranks (default: cuda with nccl, else cpu)")


def add_model_option(command: ArgumentParser, default: str) -> None:
    """Add the option of the commands that train one model."""
    command.add_argument("--model", default=default, help="a transformer: tiny, small, ..., or WIDTHxLAYERS")


def add_bucket_option(command: ArgumentParser) -> None:
    """Add the option of the commands that compare wrappers."""
    command.add_argument("--bucket-mb", type=positive, default=1.0, help="size of buckets, in 1024 * 1024 bytes")


def add_round_options(command: ArgumentParser, *, rounds: int, warm_up: int, seconds: float, what: str) -> None:
    """Add the options of the commands that measure time in interleaved rounds.

    Args:
        command: the command's parser.
        rounds: the default of `--rounds`.
        warm_up: the default of `--warm-up`.
        seconds: the default of `--seconds`.
        what: what must fit into these seconds.
    """
    command.add_argument("--rounds", type=at_least(1), default=rounds, help="steps of each variant, at most")
    command.add_argument("--warm-up", type=at_least(0), default=warm_up, help="steps of each variant before those")
    command.add_argument("--seconds", type=float, default=seconds, help=f"time for {what}")


def workload_of(options: Namespace, model: str, bucket_mb: float = BUCKET_MB) -> Workload:
    """What these options train.

    Raises:
        ValueError: there is no such model. So a wrong name is refused before ranks are started.
    """
    size_of(model)
    return Workload(model, options.samples, options.words, bucket_mb, options.submission)


def train_on_ranks(options: Namespace, function: Callable[..., Raw], *arguments: object) -> Raw:
    """The raw numbers that a function returns on rank 0 of the ranks for which the options ask.

    The cores are added, and what of the submission does not work.
    """
    ranks = ranks_to_start(options.world_size, options.backend, options.device)
    with_submission = (_with_failed, ranks, options.submission, function)
    raw: Raw = on_ranks(*with_submission, *arguments, backend=options.backend, device=options.device)
    return {**raw, "cores": cores()}


def _with_failed(submission: str | None, function: Callable[..., Raw], *arguments: object) -> Raw:
    """What a function returns on a rank, and the functions of the submission that failed there."""
    raw = function(*arguments)
    return {**raw, "failed": failed_functions(submission)}
