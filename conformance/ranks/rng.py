"""Whether a block moves the global random generators, which others draw from too. This runs in ranks only."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def noting_moved_generators(moved: list[str]) -> Iterator[None]:
    """Add to `moved` which of "torch", "random" and "numpy" the block has drawn from or seeded.

    Each has drawn before, so that none is where a seed alone has put it: who seeds it alike again has moved it, too.
    """
    torch.rand(())
    random.random()  # noqa: S311  nobody keeps it
    np.random.random()  # noqa: NPY002  the global generator is what old transforms use
    before = states_of_global_generators()
    yield
    moved += [name for name, state in states_of_global_generators().items() if state != before[name]]


def states_of_global_generators() -> dict[str, Any]:
    """Return by name what can be compared."""
    numpys = np.random.get_state(legacy=False)["state"]  # noqa: NPY002  see above
    return {
        "torch": torch.get_rng_state().tolist(),
        "random": random.getstate(),
        "numpy": (numpys["key"].tolist(), numpys["pos"]),
    }
