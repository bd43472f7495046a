"""Random numbers that are the same in every run: each test starts from a seed of its own."""

import hashlib
import random
import sys

_SEEDS = 2**31


def seed_of(run_seed: int, name: str) -> int:
    """Return the seed of the test or fixture of that name: the same on all ranks and in every run."""
    digest = hashlib.blake2b(f"{run_seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % _SEEDS


def seed_section(run_seed: int, name: str) -> tuple[str, str]:
    """Return the section of a failure's report that says where its random numbers came from."""
    seed = seed_of(run_seed, name)
    return (
        "pytest-ddp",
        f"--ddp-seed={run_seed} gives this test the seed {seed} (ddp.seed); rank r draws from {seed} + r",
    )


def seed_everything(seed: int) -> None:
    """Seed torch (all devices in use), random, and numpy if something has imported it."""
    import torch  # noqa: PLC0415  the controller computes seeds without torch

    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
