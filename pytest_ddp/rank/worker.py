"""A rank: a process that answers runs until it is told to close."""

import atexit
import contextlib
import importlib
import os
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import astuple
from functools import partial

# By their own names: a test that replaces `time.perf_counter` or `os.getpid` and forgets must not break its rank.
from os import _exit, getpid
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NoReturn

from pytest_ddp.observed.recording import current
from pytest_ddp.outcomes.text_limits import both_ends
from pytest_ddp.protocol.flight_recorder import FlightRecorder
from pytest_ddp.protocol.messages import (
    Answer,
    Close,
    Debugging,
    Disconnect,
    GetTimeline,
    Launch,
    Message,
    Raising,
    Ready,
    Run,
    encode,
    receive,
)
from pytest_ddp.protocol.shared_files import RankFiles
from pytest_ddp.rank.connections import disconnect

if TYPE_CHECKING:
    from pytest_ddp.rank.process_state import ProcessState

_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_LOST = "its connection to the test run was closed under it ({}), as by a test that closes files that are not its own"


class Failed(Exception):  # noqa: N818  a target's way to fail with more than an exception's text
    """Raised by a target to give its own account of a failure; `body` travels to the controller."""

    def __init__(self, kind: str, message: str, text: str, body: bytes) -> None:
        super().__init__(kind, message, text, body)
        self.kind, self.message, self.text, self.body = kind, message, text, body


class Answered(BaseException):
    """Raised by a target that has already answered its run, or will answer it later, by `Rank.answer_with`."""


class SkipRun(Exception):  # noqa: N818  likewise
    """Raised by a target that asks to be skipped; `body` travels to the controller."""

    def __init__(self, reason: str, body: bytes = b"") -> None:
        super().__init__(reason)
        self.body = body


class Rank:
    """This process's side of the conversation with the controller."""

    current: "Rank"

    def __init__(self, channel: socket.socket, launch: Launch, files: RankFiles, process_state: "ProcessState") -> None:
        from pytest_ddp.rank.process_group import GroupKeeper  # noqa: PLC0415  imports torch: not before it must

        self.launch = launch
        self.closing = False
        self.run: Run | None = None
        self._channel = channel
        self._recorder = FlightRecorder.map(files.recorder)
        self._process_state = process_state
        self._pid = getpid()
        self._groups = GroupKeeper(launch.rank, launch.store, files.board)

    def serve(self, until: Callable[[], bool] = lambda: False) -> None:
        """Answer runs until the controller says close or is gone, or `until()` holds after a run."""
        while not self.closing and not until():
            message = self._receive()
            if isinstance(message, Run):
                self._answer_run(message)
            elif isinstance(message, Disconnect):
                disconnect()
            elif isinstance(message, GetTimeline):
                self.send(Answer(message.number, "returned", body=_timeline()))
            else:
                self.closing = message is None or isinstance(message, Close)

    def answer_with(self, target: Callable[[], bytes], run: Run | None = None) -> None:
        """Call `target` and send what became of it as the outcome of `run`, by default of the run at hand."""
        run = run or self.run
        if run is None:
            raise RuntimeError("there is no run to answer")
        try:
            self._answer(run, "returned", body=target())
        except Answered:
            pass
        except SkipRun as skip:
            self._answer(run, "skipped", message=str(skip), body=skip.body)
        except Failed as failed:
            self._answer(
                run, "raised", kind=failed.kind, message=failed.message, traceback=failed.text, body=failed.body
            )
        except BaseException as error:  # noqa: BLE001  SystemExit and KeyboardInterrupt are outcomes like any other
            self.send(Raising())
            kind, message, text = describe(error)
            self._answer(run, "raised", kind=kind, message=message, traceback=text)

    def _answer(
        self, run: Run, outcome: str, *, kind: str = "", message: str = "", traceback: str = "", body: bytes = b""
    ) -> None:
        self._process_state.flush()
        current.monitor().run_ended()
        seconds = perf_counter() - self._started
        self.send(Answer(run.number, outcome, seconds, kind, both_ends(message), both_ends(traceback), body))

    def send(self, message: Answer | Ready | Raising | Debugging) -> None:
        """Send a message to the controller; leave if it is gone, or if this is not the rank's own process."""
        data = encode(message)
        try:
            self._channel.sendall(data)
        except OSError as error:
            self._leave(error)

    def note(self, collective: object) -> None:
        """Write a collective that this rank enters into its flight recorder."""
        self._recorder.write(str(collective))

    def _receive(self) -> Message | None:
        try:
            return receive(self._channel)
        except OSError as error:
            self._leave(error)

    def _leave(self, error: OSError) -> NoReturn:
        if getpid() == self._pid:
            self._recorder.note(_LOST.format(error))
        else:
            os.write(2, b"a process forked by the test came back from it: it ends here; end it with os._exit()\n")
        _exit(1)

    def _answer_run(self, run: Run) -> None:
        outer, self.run, self._started = self.run, run, perf_counter()
        try:
            self.answer_with(partial(self._run_target, run, outer))
        finally:
            self.run = outer

    def _run_target(self, run: Run, outer: Run | None) -> bytes:
        begins = outer is None or run.group != outer.group
        if begins:
            self._recorder.clear()
            self._process_state.restore()
        self._groups.enter(run)
        current.monitor().run_began()
        if begins:
            current.reset()
        return resolve(run.target)(run.body)


def _timeline() -> bytes:
    try:
        return current.timeline().encode(errors="replace")
    except Exception as broken:  # noqa: BLE001  the test may have broken what it is made with
        return f"<it could not be made: {type(broken).__name__}: {broken}>".encode(errors="replace")


def joined(_: bytes) -> bytes:
    """Be a target that does nothing: the group is what was asked for."""
    return b""


def resolve(target: str) -> Callable[[bytes], bytes]:
    """Return the function that "module:function" names."""
    module, _, name = target.partition(":")
    function: Callable[[bytes], bytes] = getattr(importlib.import_module(module), name)
    return function


def describe(error: BaseException) -> tuple[str, str, str]:
    """Return an exception as text: its type's name, its message, its traceback without our own frames."""
    try:
        message = str(error)
    except Exception as broken:  # noqa: BLE001  a foreign __str__ may do anything
        message = f"<its message could not be made: {type(broken).__name__}>"
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except Exception:  # noqa: BLE001  as above
        text = f"{type(error).__name__}: {message}\n"
    return type(error).__qualname__, message, text


def _is_ours(filename: str) -> bool:
    return filename.startswith(_OURS)


def run_rank(files: RankFiles) -> NoReturn:
    """Be a rank: the whole life of its process, which ends here.

    Leaves by `os._exit` because torch with gloo now and then aborts in an orderly interpreter exit; what was to be
    done at exit is done before, save what the parent had in mind for itself.
    """
    status = 1
    atexit._clear()  # noqa: SLF001  as multiprocessing does in its children
    try:
        channel = _own(files)
        launch = receive(channel)
        if isinstance(launch, Launch):
            _live(channel, launch, files, _settle(files, launch))
            status = 0
    except BaseException:  # noqa: BLE001  nothing may run past this frame in a forked process
        traceback.print_exc()
    finally:
        _exit(status)


def _own(files: RankFiles) -> socket.socket:
    """Keep the descriptors from processes that a test starts: they must neither speak for the rank nor outlive it."""
    for fd in astuple(files):
        os.set_inheritable(fd, False)
    channel = socket.socket(fileno=files.channel)
    os.register_at_fork(after_in_child=channel.close)
    return channel


def _live(channel: socket.socket, launch: Launch, files: RankFiles, process_state: "ProcessState") -> None:
    from pytest_ddp.rank.collective_hooks import watch_collectives  # noqa: PLC0415  imports torch: not before it must

    Rank.current = rank = Rank(channel, launch, files, process_state)
    try:
        with watch_collectives(rank.note):
            if launch.host is None:
                rank.send(Ready())
                rank.serve()
            else:
                resolve(launch.host)(launch.body)
    except BaseException as error:  # noqa: BLE001  a host that fails to start is reported, whatever it raised
        kind, message, text = describe(error)
        rank.send(Answer(-1, "raised", 0.0, kind, both_ends(message), both_ends(text)))
    else:
        atexit._run_exitfuncs()  # noqa: SLF001  likewise
    finally:
        process_state.flush()


def _settle(files: RankFiles, launch: Launch) -> "ProcessState":
    """Take on the controller's folder, path and environment; send output and stacks where the controller reads them."""
    import torch  # noqa: PLC0415  already imported by the fork server

    os.chdir(launch.cwd)
    os.environ.clear()
    os.environ.update(launch.env)
    sys.path[:] = launch.sys_path
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    from pytest_ddp.rank.process_state import ProcessState  # noqa: PLC0415  POSIX only; the controller's side loads everywhere

    process_state = ProcessState(launch.cwd, files.stacks, files.output if launch.capture else None)
    process_state.restore()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setscheduler"):  # being woken, a rank would push the controller aside before it wakes others
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    return process_state
