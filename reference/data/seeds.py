"""Seeds for the random numbers of data loading: different on every rank, the same in every run.

If all ranks had the same seed, they would augment their samples in the same way. If they had no seed, a run could not
be repeated. So each rank computes its own seed from the run's seed and its rank. `seed + rank` would be a mistake: rank
1 of a run would have the same seed as rank 0 of a run whose seed is one higher. `rank_seed` mixes the two numbers.

The worker processes of a loader get a seed for torch from the loader's generator, each a different one. But the states
of NumPy's and Python's generators are copied by fork, so all workers have the same, until `seed_worker` seeds them.

Source: PyTorch's notes on reproducibility (DataLoader) and on randomness in multi-process data loading; numpy's
`SeedSequence` for the mixing (O'Neill, "Developing a seed_seq Alternative", 2015).
"""

import random

import numpy as np
import torch
import torch.distributed as dist


def ddp_generator(seed: int) -> torch.Generator:
    """A CPU generator for this rank's `DataLoader(generator=...)`. Without a process group, it is that of rank 0.

    Args:
        seed: seed of the run, the same on every rank; not negative.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    generator = torch.Generator()
    generator.manual_seed(rank_seed(seed, rank))
    return generator


def rank_seed(seed: int, rank: int) -> int:
    """Compute a seed below 2**63 from the run's seed and the rank. No other pair is likely to have the same one."""
    [mixed] = np.random.SeedSequence([seed, rank]).generate_state(1, np.uint64)
    return int(mixed >> np.uint64(1))


def seed_worker(worker_id: int) -> None:  # noqa: ARG001  # DataLoader passes it; torch's seed differs per worker
    """Seed NumPy's and Python's generators in a worker process: `DataLoader(worker_init_fn=seed_worker)`."""
    seed = torch.initial_seed() % 2**32  # the loader computed it from its generator and the worker's number
    np.random.seed(seed)  # noqa: NPY002  # old transforms draw from the global generator
    random.seed(seed)
