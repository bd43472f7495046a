"""A rank process as the controller sees it: its messages, its output, its state, and the outcomes of its runs."""

import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddp.operations.fingerprint import Fingerprints
from pytest_ddp.outcomes.outcome import Died, Outcome, Raised, Returned, Skipped
from pytest_ddp.pool.stack_dumps import Dump, StackDump, trim_stacks
from pytest_ddp.protocol.flight_recorder import Reader
from pytest_ddp.protocol.messages import DUMP_SIGNAL, READ_BYTES, Answer, Decoder, Message, encode
from pytest_ddp.protocol.shared_files import OutputFile, SharedFiles

_BUSY_STATES = ("R", "D")  # running or runnable, and waiting for a disk: see proc(5)
_DISCONNECTED = "closed the connection to the test run, ran on, and had to be ended"


@dataclass
class RankProcess:
    """One rank of a pool.

    Attributes:
        pid: its process id, which is also the id of its process group.
        shared: its channel and the files that outlive it.
        is_raising: whether the rank has announced that its run raised an exception; the answer is still to come.
        is_settled: whether the rank has returned, and says that nothing of its run can go on in its process group.
        output: what it printed in this run.
    """

    rank: int
    pid: int
    shared: SharedFiles
    is_raising: bool = False
    is_settled: bool = False
    output: OutputFile = field(init=False)
    _decoder: Decoder = field(default_factory=Decoder)
    _recorder: Reader = field(init=False)

    def __post_init__(self) -> None:
        self._recorder = Reader(self.shared.recorder.fileno(), self.rank)
        self.output = OutputFile(self.shared.output)

    def fileno(self) -> int:
        """The channel's descriptor: selectors accept rank processes."""
        return self.shared.channel.fileno()

    def send(self, message: Message | bytes) -> None:
        """Send a message, which may be encoded already; do nothing if the process has ended."""
        with suppress(OSError):
            self.shared.channel.sendall(message if isinstance(message, bytes) else encode(message))

    def receive(self, seconds: float) -> list[Message] | None:
        """Wait for messages; return an empty list if none came in time, None if the process has ended."""
        end = time.monotonic() + seconds
        while self._is_readable(end - time.monotonic()):
            messages = self.read()
            if messages or messages is None:
                return messages
        return []

    def read(self) -> list[Message] | None:
        """Return the messages that are complete; None if the process has ended. Blocks if there is nothing to read."""
        try:
            data = self.shared.channel.recv(READ_BYTES)
        except OSError:
            data = b""
        return list(self._decoder.feed(data)) if data else None

    def is_idle(self) -> bool:
        """Whether the process is alive and sends nothing, as it should between runs."""
        return not self._is_readable(0)

    def _is_readable(self, seconds: float) -> bool:
        """Wait until there is something to read, or the time is over. Unlike `select`, `poll` takes any descriptor."""
        waiting = select.poll()
        waiting.register(self, select.POLLIN)
        return bool(waiting.poll(max(0.0, seconds) * 1000))

    def reset(self) -> None:
        """Forget what is known of earlier runs: their output, and how they ended."""
        self.is_raising = self.is_settled = False
        self.output.clear()

    @property
    def collectives(self) -> Fingerprints:
        """The last operations that the rank entered in its run, oldest first."""
        return Fingerprints(self._recorder.latest(), self.rank)

    @property
    def collectives_entered(self) -> int:
        """The number of operations that the rank has entered in its run."""
        head = self._recorder.head()
        return head.count - head.first

    @property
    def stack(self) -> str:
        """The Python stacks that it wrote on a fatal signal or on request, without pytest's frames and ours."""
        return trim_stacks(OutputFile(self.shared.stacks).text)

    @property
    def exit_note(self) -> str:
        """Why the rank left, if it could write that down."""
        return self._recorder.exit_note

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self.status not in {"gone", "zombie"}

    @property
    def is_halted(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped the process."""
        return self.status == "stopped"

    @property
    def status(self) -> str:
        """What the process does, in the words of psutil; "gone" if it has ended."""
        import psutil  # noqa: PLC0415  needed only after a failure

        try:
            return str(psutil.Process(self.pid).status())
        except psutil.NoSuchProcess:
            return "gone"

    @property
    def is_busy(self) -> bool:
        """Whether one of its threads uses a CPU, or waits for a CPU or a disk. False on systems other than Linux."""
        for file in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with suppress(OSError):
                text = file.read_text(encoding="utf-8", errors="replace")
                if text.rpartition(") ")[2].startswith(_BUSY_STATES):  # the name before the state is in parentheses
                    return True
        return False

    @property
    def cpu_seconds(self) -> float:
        """The CPU time that the process has used; 0 if it has ended."""
        import psutil  # noqa: PLC0415  needed only after a failure

        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(self.pid).cpu_times()
            return float(times.user + times.system)
        return 0.0

    def begin_dump(self) -> Dump:
        """Make the process write its Python stacks."""
        dump = StackDump(self)
        self.request_stacks()
        return dump

    def request_stacks(self) -> None:
        """Make the process write its Python stacks. Works while it holds the GIL; wakes it if it is stopped."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, DUMP_SIGNAL)
            os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the process and its whole process group."""
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)


def common_fields(process: RankProcess, seconds: float) -> dict[str, Any]:
    """Return the fields that every outcome has."""
    return {"rank": process.rank, "seconds": seconds, "output": process.output.text, "collectives": process.collectives}


def answer_outcome(process: RankProcess, answer: Answer) -> Outcome:
    """Return the outcome of a run that the rank answered."""
    fields = common_fields(process, answer.seconds)
    process.is_settled = answer.settled
    if answer.outcome == "returned":
        return Returned(**fields, body=answer.body)
    if answer.outcome == "skipped":
        return Skipped(**fields, reason=answer.message, body=answer.body)
    return Raised(**fields, kind=answer.kind, message=answer.message, traceback=answer.traceback, body=answer.body)


def death_outcome(process: RankProcess, seconds: float, code: int | None, *, still_running: bool) -> Died:
    """Return the outcome of a run in which the rank's connection ended; an exit code below 0 is that of a signal."""
    fields = {**common_fields(process, seconds), "stack": process.stack}
    if still_running:
        return Died(**fields, exit_note=_DISCONNECTED)
    if code is not None and code < 0:
        return Died(**fields, exit_note=process.exit_note, signal=_signal_name(-code))
    return Died(**fields, exit_note=process.exit_note, exit_code=code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
