"""The seeds of tests and fixtures: each has its own, which is the same in every run."""

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SEEDS = 2**31


def seed_of(run_seed: int, name: str) -> int:
    """Return the seed of the test or fixture with this name: the same on all ranks and in every run."""
    digest = hashlib.blake2b(f"{run_seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % _SEEDS


def seed_section(run_seed: int, name: str, *, alike: bool = False) -> tuple[str, str]:
    """Return the title and text of the section on random numbers in the report of a failed test.

    Args:
        run_seed: the seed of the run.
        name: the node id of the test.
        alike: whether all ranks of the test were seeded alike.
    """
    seed = seed_of(run_seed, name)
    ranks = f"every rank is seeded with {seed}" if alike else f"rank r is seeded with {seed} + r"
    return "pytest-ddp", f"--ddp-seed={run_seed} gives this test the seed {seed} (ddp.seed); {ranks}"


def seed_everything(seed: int) -> None:
    """Seed torch (on all devices in use), random, and numpy if it has been imported."""
    import torch  # noqa: PLC0415  the controller computes seeds without torch

    torch.default_generator.manual_seed(seed)  # a hundred times faster than torch.manual_seed
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the state of all generators that `seed_everything` seeds."""
    import torch  # noqa: PLC0415  likewise

    numpy, state = sys.modules.get("numpy"), random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
