"""Seeds the random numbers of a rank."""

import random
import sys

import torch


def seed_everything(seed: int) -> None:
    """Seed torch (all devices in use), random, and numpy if something has imported it."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
