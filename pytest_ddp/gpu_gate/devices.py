"""The GPUs of this machine as `nvidia-smi` shows them: how much memory is held, and by which processes."""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_ddp.errors import PytestDDPError

_SECONDS = 60.0  # the driver takes long to start on a machine with many GPUs
_POLL_SECONDS = 1.0
_GPU_FIELDS = "index,uuid,name,memory.total,memory.used"
_PROCESS_FIELDS = "gpu_uuid,pid,process_name,used_memory"


class UnfitError(PytestDDPError):
    """This machine cannot run the gate now; the message says what it lacks."""


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a GPU; `mib` is None where the driver does not say how much."""

    pid: str
    name: str
    mib: int | None

    def __str__(self) -> str:
        return f"pid {self.pid} {self.name} ({'unknown size' if self.mib is None else f'{self.mib} MiB'})"


@dataclass(frozen=True)
class Gpu:
    """A GPU, its memory in MiB, and the processes that hold memory of it."""

    index: int
    uuid: str
    name: str
    total_mib: int
    used_mib: int
    holders: tuple[Holder, ...] = ()

    def __str__(self) -> str:
        holders = ", ".join(map(str, self.holders)) or "no process that nvidia-smi shows here"
        return f"GPU {self.index} ({self.name}): {self.used_mib} of {self.total_mib} MiB held by {holders}"


def query() -> list[Gpu]:
    """Return the GPUs of this machine, whatever CUDA_VISIBLE_DEVICES says.

    Raises:
        UnfitError: there is no nvidia-smi, it fails, or it shows no GPU or no memory.
    """
    rows = [_split(line, 5) for line in _ask(f"--query-gpu={_GPU_FIELDS}")]
    holders: dict[str, list[Holder]] = {}
    for line in _ask(f"--query-compute-apps={_PROCESS_FIELDS}"):
        uuid, pid, name, mib = _split(line, 4)
        holders.setdefault(uuid, []).append(Holder(pid, name, int(mib) if mib.isdecimal() else None))
    if not rows:
        raise UnfitError("nvidia-smi shows no GPU")
    return [_gpu(*row, holders=tuple(holders.get(row[1], ()))) for row in rows]


def held_mib() -> dict[str, int]:
    """Return the memory that is held now on each GPU, by uuid: one fast look; raise UnfitError as `query` does."""
    rows = [list(map(str.strip, line.split(","))) for line in _ask("--query-gpu=uuid,memory.used")]
    return {uuid: int(used) for uuid, used in rows if used.isdecimal()}


def visible(gpus: Sequence[Gpu], setting: str | None) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; None leaves all.

    As in CUDA, a name that fits no GPU hides all that follow.
    """
    if setting is None:
        return list(gpus)
    found: list[Gpu] = []
    for name in map(str.strip, setting.split(",")):
        fitting = [gpu for gpu in gpus if name == str(gpu.index) or (name[:4] == "GPU-" and gpu.uuid.startswith(name))]
        if not fitting:
            break
        found += fitting[:1]
    return found


def usable(required: int, setting: str | None) -> list[Gpu]:
    """Return the visible GPUs; raise UnfitError if there are fewer than required."""
    gpus = query()
    seen = visible(gpus, setting)
    if len(seen) < required:
        hidden = "" if setting is None else f", and CUDA_VISIBLE_DEVICES={setting!r} leaves {len(seen)} of them"
        raise UnfitError(f"{required} GPUs are required: nvidia-smi shows {len(gpus)}{hidden}")
    return seen


def wait_until_free(look: Callable[[], list[Gpu]], limit_mib: int, seconds: float) -> tuple[list[Gpu], list[str]]:
    """Wait until no GPU has more memory held than the limit; return the last look, and a sentence for each that has.

    Processes of an earlier job may still be ending, so the gate waits for `seconds` before it complains.
    """
    deadline = time.monotonic() + seconds
    while True:
        gpus = look()
        full = [f"{gpu}; the limit is {limit_mib} MiB" for gpu in gpus if gpu.used_mib > limit_mib]
        if not full or time.monotonic() > deadline:
            return gpus, full
        time.sleep(min(_POLL_SECONDS, seconds))


def _ask(query_option: str) -> list[str]:
    command = ["nvidia-smi", query_option, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except FileNotFoundError:
        raise UnfitError(
            "there is no nvidia-smi here: this machine has no NVIDIA driver, or the container was started without GPUs"
        ) from None
    except subprocess.TimeoutExpired:
        raise UnfitError(f"nvidia-smi did not answer within {_SECONDS:g} s: the driver hangs") from None
    if done.returncode:
        raise UnfitError(f"nvidia-smi ended with exit code {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return [line for line in done.stdout.splitlines() if line.strip()]


def _split(line: str, fields: int) -> list[str]:
    """Return the fields of a line; the third may contain commas: it is a name."""
    first, second, *name, last = map(str.strip, line.split(","))
    tail = [last] if fields == 4 else [name.pop(), last]  # noqa: PLR2004  fields of a process: see above
    return [first, second, ", ".join(name), *tail]


def _gpu(index: str, uuid: str, name: str, total: str, used: str, *, holders: tuple[Holder, ...]) -> Gpu:
    if not (total.isdecimal() and used.isdecimal()):
        raise UnfitError(f"nvidia-smi does not say how much memory of GPU {index} is held: {used} (is MIG on?)")
    return Gpu(int(index), uuid, name, int(total), int(used), holders)
