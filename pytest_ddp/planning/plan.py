"""The plan of a distributed test: run it, skip it or refuse it. Pure: no process is started yet."""

import functools
import os
from dataclasses import dataclass
from typing import TypeAlias

from pytest_ddp.planning.request import Request
from pytest_ddp.planning.world import DEFAULT_BACKEND, World
from pytest_ddp.settings import Settings

_RANKS_PER_CORE = 8
_RANKS_PER_GPU = {"gloo": 8}  # NCCL refuses two ranks on one GPU


def core_count() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Machine:
    """The CPU cores, the CUDA devices and the torch.distributed backends of a machine."""

    cores: int
    cuda_devices: int
    backends: frozenset[str]

    @classmethod
    @functools.cache
    def detect(cls) -> "Machine":
        """Return this machine. Imports torch, but creates no CUDA context."""
        import torch.cuda  # noqa: PLC0415  torch is imported only when a distributed test is about to run
        import torch.distributed as dist  # noqa: PLC0415

        gpus = torch.cuda.device_count()
        backends = {name for name in ("gloo", "nccl", "mpi", "ucc") if dist.is_backend_available(name)}
        return cls(core_count(), gpus, frozenset(backends if gpus else backends - {"nccl"}))

    def max_world_size(self, device: str, backend: str = "gloo") -> int:
        """Return how many ranks fit: a fixed number per core on "cpu"; on "cuda" one per GPU, over gloo several."""
        if device == "cuda":
            return self.cuda_devices * _RANKS_PER_GPU.get(backend, 1)
        return _RANKS_PER_CORE * self.cores

    def gpus(self, size: int, device: str) -> tuple[int, ...]:
        """Return the GPUs of ranks that have to share GPUs, in turn; () if each rank has its own, or none."""
        if device != "cuda" or size <= self.cuda_devices:
            return ()
        return tuple(rank % self.cuda_devices for rank in range(size))


@dataclass(frozen=True)
class RunOnRanks:
    """Run the test in this world, each phase within `timeout` seconds."""

    world: World
    timeout: float
    isolation: str


@dataclass(frozen=True)
class Skip:
    """Skip the test: this machine lacks something that it needs."""

    reason: str


@dataclass(frozen=True)
class Refuse:
    """Fail the test: its request is invalid, or too large for this machine."""

    reason: str


Plan: TypeAlias = RunOnRanks | Skip | Refuse


def plan(settings: Settings, request: Request, machine: Machine) -> Plan:
    """Return what to do with a test on this machine; values in `request` win over `settings`."""
    decision = _plan(settings, request, machine)
    return lack(settings, decision.reason) if isinstance(decision, Skip) else decision


def lack(settings: Settings, reason: str) -> Skip | Refuse:
    """Return what to do with a test that this machine cannot run."""
    return Refuse(f"{reason} (skipped unless --ddp-strict)") if settings.strict else Skip(reason)


def _plan(settings: Settings, request: Request, machine: Machine) -> Plan:
    size = request.world_sizes[0] if request.world_sizes else settings.world_size[0]
    device = request.device or settings.device
    if device == "auto":
        device = "cuda" if machine.cuda_devices >= size else "cpu"
    backend = request.backend or settings.backend or DEFAULT_BACKEND[device]
    if backend == "nccl" and device == "cpu":
        if request.device == "cpu":
            return Refuse('backend="nccl" sends CUDA tensors only: remove device="cpu", or write backend="gloo"')
        device = "cuda"
    limit = machine.max_world_size(device, backend)
    if device == "cuda" and size > limit:
        return Skip(f"{_need(size, backend)}; this machine has {machine.cuda_devices}")
    if backend not in machine.backends:
        return Skip(f"backend {backend!r} is not available here; torch offers {', '.join(sorted(machine.backends))}")
    if size > limit:
        return Refuse(f"world size {size} is too large: {machine.cores} cores run at most {limit} ranks")
    world = World(
        size,
        backend,
        device,
        machine.gpus(size, device),
        observe=bool(request.observe),
        has_group=request.group is not False,
    )
    return RunOnRanks(world, request.timeout or settings.timeout, request.isolation)


def _need(size: int, backend: str) -> str:
    gpus = -(-size // _RANKS_PER_GPU.get(backend, 1))
    ranks = "1 rank on cuda needs" if size == 1 else f"{size} ranks on cuda need"
    return f"{ranks} {gpus} GPU{'' if gpus == 1 else 's'}"
