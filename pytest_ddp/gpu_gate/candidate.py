"""The candidate's processes: which variables they get, how they are started, watched and ended."""

import fnmatch
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from pytest_ddp.gpu_gate.devices import UnfitError
from pytest_ddp.pool.parent_death import adopt_orphans, kill_descendants

PASSED = ("PATH", "LANG", "LC_*", "TZ", "CI", "LD_LIBRARY_PATH", "CUDA_*", "NVIDIA_*", "NCCL_*", "GLOO_*")
_LOG_BYTES = 64 * 2**20
_READ_BYTES = 2**16
_PROBE_SECONDS = 300.0
_END_SECONDS = 10.0  # that processes get to end by themselves, after the tests or after SIGTERM
_SUM = 64.0**3  # of the product of two 64 x 64 matrices of ones


def environment(source: Mapping[str, str], passed: Iterable[str], folder: Path) -> dict[str, str]:
    """Return the variables for the candidate: those of `source` whose names fit a pattern, and folders of its own."""
    patterns = (*PASSED, *passed)
    kept = {name: value for name, value in source.items() if any(fnmatch.fnmatchcase(name, each) for each in patterns)}
    own = {name: str(folder / place) for name, place in (("HOME", "home"), ("TMPDIR", "tmp"))}
    for place in own.values():
        Path(place).mkdir(exist_ok=True)
    # Without the order, CUDA and nvidia-smi may number the GPUs differently.
    return {**kept, **own, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class Candidate:
    """How to run Python for the candidate: the command, the folder, the variables."""

    python: Sequence[str]
    folder: Path
    variables: Mapping[str, str]

    def check_gpus(self, required: int) -> str:
        """Let the candidate's torch compute on its GPUs; return what it found.

        Raises:
            UnfitError: torch finds fewer GPUs than required, or cannot compute on them.
        """
        text = Path(__file__).with_name("probe.py").read_text(encoding="utf-8")
        command = [*self.python, "-c", text]
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=dict(self.variables),
                capture_output=True,
                text=True,
                timeout=_PROBE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnfitError(f"the candidate's Python did not compute on a GPU: {error}") from None
        return _read_probe(done, required)

    def run(self, arguments: Sequence[str], log: IO[bytes], echo: IO[bytes] | None, limit: float) -> "Started":
        """Start Python with these arguments; its output goes to the log and to `echo`."""
        adopt_orphans()
        process = subprocess.Popen(
            [*self.python, *arguments],
            cwd=self.folder,
            env=dict(self.variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return Started(process, [sink for sink in (log, echo) if sink], time.monotonic() + limit)


@dataclass(frozen=True)
class Ended:
    """How the tests ended: the exit code, None after a timeout, and the processes that outlived them, by name."""

    exit_code: int | None
    left: tuple[str, ...] = ()


@dataclass
class Started:
    """The tests while they run."""

    process: "subprocess.Popen[bytes]"
    sinks: list[IO[bytes]]
    deadline: float
    _written: int = 0

    def wait(self, look: Callable[[], object], every: float) -> Ended:
        """Copy the output and call `look`, a fifth of the time at most, until the tests end or their time is over."""
        following, late = 0.0, False
        try:
            while self.process.poll() is None and not late:
                self._copy(every)
                if (begun := time.monotonic()) >= following:
                    look()
                    ended = time.monotonic()
                    following = ended + max(every, 4 * (ended - begun))
                late = time.monotonic() > self.deadline
            left = () if late else _left()
        finally:
            self._end()
        while self._copy(0):
            pass
        return Ended(None if late else self.process.returncode, left)

    def _copy(self, seconds: float) -> bool:
        """Wait for output and copy it; return whether there was any."""
        pipe = self.process.stdout
        if pipe is None or not select.select([pipe], [], [], seconds)[0]:
            return False
        data = os.read(pipe.fileno(), _READ_BYTES)
        if not data:
            time.sleep(min(seconds, 0.1))  # closed by processes that still run
        if self._written < _LOG_BYTES:
            for sink in self.sinks:
                sink.write(data)
                sink.flush()
        self._written += len(data)
        return bool(data)

    def _end(self) -> None:
        """End what still runs: by SIGTERM, on which `docker run` stops its container, then by SIGKILL."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_SECONDS)
        kill_descendants()
        self.process.wait()


def _left() -> tuple[str, ...]:
    """Return the processes that do not end by themselves after the tests."""
    children = psutil.Process().children(recursive=True)
    alive = psutil.wait_procs(children, timeout=_END_SECONDS)[1]
    names = []
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                names.append(f"pid {process.pid} {process.name()}")
    return tuple(names)


def _read_probe(done: "subprocess.CompletedProcess[str]", required: int) -> str:
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        version, gpus = str(answer["torch"]), [(str(name), float(total)) for name, total in answer["gpus"]]
    except (ValueError, IndexError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["it wrote nothing"])[-1]
        raise UnfitError(f"the candidate's Python did not compute on a GPU: {last}") from None
    if len(gpus) < required:
        raise UnfitError(f"{required} GPUs are required, but torch {version} of the candidate finds {len(gpus)}")
    if wrong := [index for index, (_, total) in enumerate(gpus) if total != _SUM]:
        raise UnfitError(f"torch {version} of the candidate computes wrong numbers on GPUs {wrong}")
    return f"torch {version} computes on {', '.join(name for name, _ in gpus)}"
