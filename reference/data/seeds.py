"""Random numbers of data loading: different on every rank, the same in every run.

With one seed everywhere, ranks would augment their samples alike and drop the same units: W samples with one noise.
With none, a run could not be repeated. So each rank derives its own seed from the run's. Seeds of neighbouring ranks
must not collide with those of a run whose seed is one higher, as `seed + rank` would; mixing the two apart avoids that.

A loader's worker processes have torch's seed from the loader's generator, each another one; numpy and Python's random
have what they inherited by fork, the same in every worker, until `seed_worker` gives them a part of torch's.

Source: PyTorch's notes on reproducibility (DataLoader) and on randomness in multi-process data loading; numpy's
`SeedSequence` for the mixing (O'Neill, "Developing a seed_seq Alternative", 2015).
"""

import random

import numpy as np
import torch
import torch.distributed as dist


def ddp_generator(seed: int) -> torch.Generator:
    """A generator for this rank's `DataLoader(generator=...)`; without a process group, that of rank 0.

    Args:
        seed: of the run, the same on every rank; not negative.

    Returns:
        A CPU generator whose seed is mixed from `seed` and the rank.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    generator = torch.Generator()
    generator.manual_seed(rank_seed(seed, rank))
    return generator


def rank_seed(seed: int, rank: int) -> int:
    """Mix the seed of the run and the rank into a seed below 2**63 that no other pair is likely to have."""
    [mixed] = np.random.SeedSequence([seed, rank]).generate_state(1, np.uint64)
    return int(mixed >> np.uint64(1))


def seed_worker(worker_id: int) -> None:  # noqa: ARG001  # DataLoader passes it; torch's seed tells workers apart
    """Seed numpy and random in a worker process: `DataLoader(worker_init_fn=seed_worker)`."""
    seed = torch.initial_seed() % 2**32  # the loader has made it of its generator and the worker
    np.random.seed(seed)  # noqa: NPY002  # the state that other code draws from
    random.seed(seed)
