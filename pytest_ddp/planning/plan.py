"""The plan of a distributed test: run it, skip it or refuse it. Pure: no process is started yet."""

import functools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pytest_ddp.planning.nodes import local_ranks, no_nodes, spread
from pytest_ddp.planning.request import Request
from pytest_ddp.planning.world import DEFAULT_BACKEND, RANK_ORDER, World
from pytest_ddp.settings import SIMULATED, Settings

# An option of a test, the value that simulated ranks cannot have (Any: no value), and why.
_NOT_SIMULATED: tuple[tuple[str, Any, str], ...] = (
    ("device", "cuda", "simulated ranks have tensors on CPU only"),
    ("nodes", Any, "simulated ranks are threads of one process, on one node"),
    ("observe", True, "simulated ranks are not observed: a simulation itself checks every operation"),
    ("group", False, "simulated ranks have the default group that the plugin makes"),
)
_SIMULATED_ONLY = ("schedule", "faults", "reduction")
_RANKS_PER_CORE = 8
_RANKS_PER_GPU = {"gloo": 8}  # NCCL refuses two ranks on one GPU


def core_count() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Machine:
    """The CPU cores, the CUDA devices and the torch.distributed backends of a machine, and the job that it is in.

    `job` are the numbers of the nodes of the job's ranks; it is empty if pytest was started by itself. All nodes of a
    job are supposed to be alike.
    """

    cores: int
    cuda_devices: int
    backends: frozenset[str]
    job: tuple[int, ...] = ()

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

    def gpus(self, locals_: Sequence[int], device: str) -> tuple[int, ...]:
        """Return the GPUs of ranks that have to share GPUs, by local rank; () if each has its own, or none."""
        if device != "cuda" or max(locals_) < self.cuda_devices:
            return ()
        return tuple(local % self.cuda_devices for local in locals_)

    def nodes_for(self, size: int, wanted: int | None) -> tuple[int, ...] | str:
        """Return the nodes of the ranks of a world on so many nodes, or what is lacking; () for one on this machine."""
        if not self.job:
            return no_nodes(wanted) if wanted is not None and wanted > 1 else ()
        found = spread(size, wanted, self.job)
        return () if found == self.job[:size] and set(found) == {0} else found


@dataclass(frozen=True)
class RunOnRanks:
    """Run the test in this world, each phase within `timeout` seconds; simulated ranks with a schedule and faults."""

    world: World
    timeout: float
    isolation: str
    schedule: Any = None
    faults: Any = None


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
    simulated = (request.backend or settings.backend) == SIMULATED
    decision = _plan_simulated(settings, request) if simulated else _plan(settings, request, machine)
    return lack(settings, decision.reason) if isinstance(decision, Skip) else decision


def lack(settings: Settings, reason: str) -> Skip | Refuse:
    """Return what to do with a test that this machine cannot run."""
    return Refuse(f"{reason} (skipped unless --ddp-strict)") if settings.strict else Skip(reason)


def _plan(settings: Settings, request: Request, machine: Machine) -> Plan:
    for name in _SIMULATED_ONLY:
        if getattr(request, name) is not None:
            return Refuse(f'{name}=... works on simulated ranks only: write backend="sim", or remove {name}')
    size = request.world_sizes[0] if request.world_sizes else settings.world_size[0]
    nodes = machine.nodes_for(size, request.nodes)
    if isinstance(nodes, str):
        return Skip(nodes)
    on_one_node = max(Counter(nodes).values(), default=size)
    device = request.device or settings.device
    if device == "auto":
        device = "cuda" if machine.cuda_devices >= on_one_node else "cpu"
    backend = request.backend or settings.backend or DEFAULT_BACKEND[device]
    if backend == "nccl" and device == "cpu":
        if request.device == "cpu":
            return Refuse('backend="nccl" sends CUDA tensors only: remove device="cpu", or write backend="gloo"')
        device = "cuda"
    limit = machine.max_world_size(device, backend)
    if device == "cuda" and on_one_node > limit:
        return Skip(f"{_need(on_one_node, backend)}; this machine has {machine.cuda_devices}")
    if backend not in machine.backends:
        return Skip(f"backend {backend!r} is not available here; torch offers {', '.join(sorted(machine.backends))}")
    if size > limit and not machine.job:
        return Refuse(f"world size {size} is too large: {machine.cores} cores run at most {limit} ranks")
    world = World(
        size,
        backend,
        device,
        machine.gpus(local_ranks(nodes or (0,) * size), device),
        observe=bool(request.observe),
        has_group=request.group is not False,
        nodes=nodes,
    )
    return RunOnRanks(world, request.timeout or settings.timeout, request.isolation)


def _plan_simulated(settings: Settings, request: Request) -> RunOnRanks | Refuse:
    """Plan for simulated ranks, which any machine has."""
    for name, value, why in _NOT_SIMULATED:
        if getattr(request, name) == value or (value is Any and getattr(request, name) is not None):
            return Refuse(f'{why}: remove {name}={getattr(request, name)!r}, or choose another backend than "sim"')
    schedule = request.schedule if settings.schedule is None else settings.schedule
    size = (request.world_sizes or settings.world_size)[0]
    world = World(size, SIMULATED, reduction=request.reduction or RANK_ORDER)
    return RunOnRanks(world, request.timeout or settings.timeout, request.isolation, schedule, request.faults)


def _need(size: int, backend: str) -> str:
    gpus = -(-size // _RANKS_PER_GPU.get(backend, 1))
    ranks = "1 rank on cuda needs" if size == 1 else f"{size} ranks on cuda need"
    return f"{ranks} {gpus} GPU{'' if gpus == 1 else 's'}"
