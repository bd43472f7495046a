"""What this machine offers to distributed tests."""

import os
from dataclasses import dataclass

_RANKS_PER_CORE = 8


@dataclass(frozen=True)
class Machine:
    """CPU cores, CUDA devices and the torch.distributed backends that can be used here."""

    cores: int
    cuda_devices: int
    backends: frozenset[str]

    @classmethod
    def detect(cls) -> "Machine":
        """Look at this machine; imports torch, starts no CUDA context."""
        import torch.cuda  # noqa: PLC0415  torch is imported only once a distributed test is about to run
        import torch.distributed as dist  # noqa: PLC0415

        available = {
            "gloo": dist.is_gloo_available(),
            "nccl": dist.is_nccl_available() and torch.cuda.device_count() > 0,
            "mpi": dist.is_mpi_available(),
            "ucc": dist.is_ucc_available(),
        }
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return cls(cores, torch.cuda.device_count(), frozenset(name for name, there in available.items() if there))

    def max_world_size(self, device: str) -> int:
        """Return how many ranks fit: one per GPU on "cuda"; on "cpu" a generous multiple of the cores."""
        return self.cuda_devices if device == "cuda" else _RANKS_PER_CORE * self.cores
