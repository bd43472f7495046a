"""Decides what to do with a distributed test before any process is started; pure, so that a table can test it."""

from dataclasses import dataclass
from typing import TypeAlias

from pytest_ddp.machine import Machine
from pytest_ddp.request import Request
from pytest_ddp.settings import Settings
from pytest_ddp.world import DEFAULT_BACKEND, World


@dataclass(frozen=True)
class Run:
    """Run the test on this world, each phase within `timeout` seconds."""

    world: World
    timeout: float
    isolation: str


@dataclass(frozen=True)
class Skip:
    """Skip: this machine lacks something that the test needs."""

    reason: str


@dataclass(frozen=True)
class Refuse:
    """Fail: no machine could run what was asked for."""

    reason: str


Plan: TypeAlias = Run | Skip | Refuse


def plan(settings: Settings, request: Request, machine: Machine) -> Plan:
    """Return what to do with a test that asks for `request` (explicit values win over `settings`) on `machine`."""
    decision = _plan(settings, request, machine)
    if settings.strict and isinstance(decision, Skip):
        return Refuse(f"{decision.reason} (skipped unless --ddp-strict)")
    return decision


def _plan(settings: Settings, request: Request, machine: Machine) -> Plan:
    size = request.world_sizes[0] if request.world_sizes else settings.world_size[0]
    device = _device(request.device or settings.device, size, machine)
    backend = request.backend or settings.backend or DEFAULT_BACKEND[device]
    if backend == "nccl" and device == "cpu":
        if request.device == "cpu":
            return Refuse('backend="nccl" moves CUDA tensors only: drop device="cpu", or write backend="gloo"')
        device = "cuda"
    limit = machine.max_world_size(device)
    if device == "cuda" and size > limit:
        need = "1 rank on cuda needs 1 GPU" if size == 1 else f"{size} ranks on cuda need {size} GPUs"
        return Skip(f"{need}; this machine has {limit}")
    if backend not in machine.backends:
        return Skip(f"backend {backend!r} is not available here; torch offers {', '.join(sorted(machine.backends))}")
    if size > limit:
        return Refuse(f"world size {size} is above what {machine.cores} cores can carry ({limit}): ask for fewer ranks")
    world = World(size, backend, device, observe=bool(request.observe))
    return Run(world, request.timeout or settings.timeout, request.isolation)


def _device(wanted: str, size: int, machine: Machine) -> str:
    if wanted != "auto":
        return wanted
    return "cuda" if machine.cuda_devices >= size else "cpu"
