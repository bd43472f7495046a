"""One rank process, seen from the controller."""

import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddp.outcomes.outcome import Died, Outcome, Raised, Returned, Skipped
from pytest_ddp.protocol.flight_recorder import FlightRecorder
from pytest_ddp.protocol.messages import DUMP_SIGNAL, Answer, Decoder, Message, encode
from pytest_ddp.protocol.output_file import OutputFile
from pytest_ddp.protocol.shared_files import SharedFiles

_PIECE = 2**16  # bytes; a larger buffer costs more to make than most messages to read
_BUSY = ("R", "D")  # see proc(5)
_HARNESS = ("/_pytest/", "/pluggy/", "/pytest_ddp/")
_BETWEEN = "/pytest_ddp/observed/"  # between torch, which calls it, and torch, which it calls


@dataclass
class RankProcess:
    """A rank of the pool: its process, its channel, and the files that outlive it.

    Attributes:
        is_raising: whether its run has ended by an exception, and its answer is to come.
    """

    rank: int
    pid: int
    shared: SharedFiles
    is_raising: bool = False
    _decoder: Decoder = field(default_factory=Decoder)
    _recorder: FlightRecorder = field(init=False)
    _printed: OutputFile = field(init=False)

    def __post_init__(self) -> None:
        self._recorder = FlightRecorder.map(self.shared.recorder.fileno())
        self._printed = OutputFile(self.shared.output)

    def fileno(self) -> int:
        """The channel's descriptor, so that `select` takes processes."""
        return self.shared.channel.fileno()

    def send(self, message: Message) -> bool:
        """Send a message; False when the process is gone."""
        return self.send_encoded(encode(message))

    def send_encoded(self, message: bytes) -> bool:
        """Send what `encode` made of a message; False when the process is gone."""
        try:
            self.shared.channel.sendall(message)
        except OSError:
            return False
        return True

    def receive(self, seconds: float) -> list[Message] | None:
        """Wait for whole messages: an empty list when none came in time, None when the process is gone."""
        end = time.monotonic() + seconds
        while select.select([self], [], [], max(0.0, end - time.monotonic()))[0]:
            messages = self.read()
            if messages or messages is None:
                return messages
        return []

    def read(self) -> list[Message] | None:
        """Return the messages that have come; None when the process is gone. Blocks unless there is something."""
        try:
            data = self.shared.channel.recv(_PIECE)
        except OSError:
            data = b""
        return list(self._decoder.feed(data)) if data else None

    def is_idle(self) -> bool:
        """Whether the process lives and has nothing to say, as it should between runs."""
        readable, _, _ = select.select([self], [], [], 0)
        return not readable

    def reset(self) -> None:
        """Forget the output of earlier runs, and what was said of them."""
        self.is_raising = False
        self._printed.clear()

    def trim_output(self) -> None:
        """Drop the middle of an output that has no end: a rank that prints and prints must not fill the disk."""
        self._printed.trim()

    @property
    def output(self) -> str:
        """What the rank printed in this run; of a very long output the beginning and the end."""
        return self._printed.text

    @property
    def collectives(self) -> Sequence[str]:
        """The last collectives that the rank entered, oldest first."""
        return self._recorder.read()

    @property
    def collectives_entered(self) -> int:
        """How many collectives the rank has entered in its group."""
        return self._recorder.count

    @property
    def stack(self) -> str:
        """The Python stacks that were written on a fatal signal or on demand, without the harness's own frames."""
        return trim_stacks(OutputFile(self.shared.stacks).text)

    @property
    def exit_note(self) -> str:
        """Why the rank left, if it could still say so."""
        return self._recorder.exit_note

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._status() not in {"gone", "zombie"}

    @property
    def is_halted(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped the process."""
        return self._status() == "stopped"

    def _status(self) -> str:
        import psutil  # noqa: PLC0415  only needed when something went wrong

        try:
            return str(psutil.Process(self.pid).status())
        except psutil.NoSuchProcess:
            return "gone"

    @property
    def is_busy(self) -> bool:
        """Whether any of its threads runs, or would with a processor or an answer of the disk; off Linux, no."""
        return any(status[0] in _BUSY for status in _statuses(Path(f"/proc/{self.pid}/task").glob("*/stat")))

    @property
    def processor_seconds(self) -> float:
        """Processor time that the process has had; off Linux, 0."""
        ticks = [int(status[11]) + int(status[12]) for status in _statuses([Path(f"/proc/{self.pid}/stat")])]
        return sum(ticks) / os.sysconf("SC_CLK_TCK")

    def ask_for_stacks(self) -> None:
        """Make the process write its Python stacks; works with the GIL held, and wakes a process that is stopped."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, DUMP_SIGNAL)
            os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the process and its whole process group."""
        for end in (os.killpg, os.kill):
            try:
                end(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


def _statuses(files: Iterable[Path]) -> Iterator[list[str]]:
    """Yield what such files tell (see proc(5)), from the state on: the name before it may have spaces."""
    for file in files:
        with suppress(OSError):  # the process, or the thread, has ended
            yield file.read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()


def trim_stacks(text: str) -> str:
    """Cut from each thread of a faulthandler dump the harness's frames and all below them; drop threads left empty."""
    return "\n\n".join(_trimmed_threads(text))


def _trimmed_threads(text: str) -> Iterator[str]:
    for block in text.strip().split("\n\n"):
        kept: list[str] = []
        for line in block.splitlines():
            if _BETWEEN in line:
                continue
            if kept and any(part in line for part in _HARNESS):
                break
            kept.append(line)
        if len(kept) > 1:
            yield "\n".join(kept)


# What became of a rank's run: the outcome that its answer, or its death, amounts to.

_RAN_ON = "closed its connection to the test run, ran on, and was ended"


def common_fields(process: RankProcess, seconds: float) -> dict[str, Any]:
    """Return what every outcome of a rank tells."""
    return {
        "rank": process.rank,
        "seconds": seconds,
        "output": process.output,
        "collectives": process.collectives,
    }


def answer_outcome(process: RankProcess, answer: Answer) -> Outcome:
    """Return the outcome that a rank's answer says."""
    words = common_fields(process, answer.seconds)
    if answer.outcome == "returned":
        return Returned(**words, body=answer.body)
    if answer.outcome == "skipped":
        return Skipped(**words, reason=answer.message, body=answer.body)
    return Raised(**words, kind=answer.kind, message=answer.message, traceback=answer.traceback, body=answer.body)


def death_outcome(process: RankProcess, seconds: float, code: int | None, *, still_running: bool) -> Died:
    """Return the outcome of a rank whose connection ended: by its process's end, or while that ran on."""
    known = {**common_fields(process, seconds), "stack": process.stack, "exit_note": process.exit_note}
    if still_running:
        return Died(**{**known, "exit_note": _RAN_ON})
    if code is not None and code < 0:
        return Died(**known, signal=_signal_name(-code))
    return Died(**known, exit_code=code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
