"""A rank: a process that receives runs and answers them until it receives `Close`."""

import atexit
import contextlib
import importlib
import os
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial

# Imported by name: a test that replaces `os.getpid` and does not put it back must not break its rank.
from os import _exit, getpid
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NoReturn

from pytest_ddp.observed.recording import current
from pytest_ddp.outcomes.text_limits import both_ends
from pytest_ddp.protocol.flight_recorder import Recorder
from pytest_ddp.protocol.messages import (
    Answer,
    Close,
    Debugging,
    Disconnect,
    GetTimeline,
    Inbox,
    Launch,
    Message,
    Raising,
    Run,
    encode,
)
from pytest_ddp.protocol.shared_files import RankFiles
from pytest_ddp.protocol.targets import NO_JOB
from pytest_ddp.rank.connections import disconnect

if TYPE_CHECKING:
    from pytest_ddp.rank.process_state import ProcessState

_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_LOST = "the connection to the test run was closed ({}); a test that closes files which are not its own can do that"


class Failed(Exception):  # noqa: N818  a failure of a target, not an error of ours
    """Raised by a target to describe its failure itself; `body` is sent to the controller."""

    def __init__(self, kind: str, message: str, text: str, body: bytes) -> None:
        super().__init__(kind, message, text, body)
        self.kind, self.message, self.text, self.body = kind, message, text, body


class Answered(BaseException):
    """Raised by a target that answers its run by itself, with `Rank.answer_with`."""


class SkipRun(Exception):  # noqa: N818  likewise
    """Raised by a target that skips; `body` is sent to the controller."""

    def __init__(self, reason: str, body: bytes = b"") -> None:
        super().__init__(reason)
        self.body = body


class Rank:
    """Receives messages from the controller, runs what they ask for, and answers."""

    current: "Rank"

    def __init__(self, inbox: Inbox, launch: Launch, files: RankFiles, process_state: "ProcessState") -> None:
        from pytest_ddp.rank.process_group import DefaultGroup  # noqa: PLC0415  imports torch

        self.launch = launch
        self.closing = False
        self.run: Run | None = None
        self._inbox = inbox
        self._recorder = Recorder(files.recorder, launch.rank)
        self._process_state = process_state
        self._pid = getpid()
        self.group = DefaultGroup(launch.store, self._recorder)

    def serve(self, until: Callable[[], bool] = lambda: False) -> None:
        """Answer runs until the controller sends `Close` or is gone, or until `until()` is true after a run."""
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
        """Call `target`; send what it returns or raises as the outcome of `run`, by default of the current run."""
        run = run or self.run
        if run is None:
            raise RuntimeError("no run to answer")
        try:
            answer = answer_of(target, run.number, lambda: self.send(Raising()))
        except Answered:
            return
        self._process_state.flush()
        settled = answer.outcome == "returned" and self.group.is_settled
        self.send(replace(answer, seconds=perf_counter() - self._started, settled=settled))

    def send(self, message: Answer | Raising | Debugging) -> None:
        """Send a message to the controller; exit if the controller is gone, or if a test forked this process."""
        data = encode(message)
        try:
            self._inbox.channel.sendall(data)
        except OSError as error:
            self._leave(error)

    def _receive(self) -> Message | None:
        self._recorder.mark_idle()
        try:
            return self._inbox.receive()
        except OSError as error:
            self._leave(error)
        finally:
            self._recorder.mark_running()

    def _leave(self, error: OSError) -> NoReturn:
        if getpid() == self._pid:
            self._recorder.note(_LOST.format(error))
        else:
            os.write(2, b"a process that the test forked has returned and ends here: let it call os._exit()\n")
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
            self._recorder.begin_run()
            self._process_state.restore()
        self.group.enter(run)
        if begins:
            current.reset()
        return resolve(run.target)(run.body)


def answer_of(target: Callable[[], bytes], number: int, on_error: Callable[[], None] = lambda: None) -> Answer:
    """Call `target`; return what it returns or raises as an answer; call `on_error` before an exception is described.

    Raises:
        Answered: as the target does.
    """
    try:
        return Answer(number, "returned", body=target())
    except Answered:
        raise
    except SkipRun as skip:
        return Answer(number, "skipped", message=both_ends(str(skip)), body=skip.body)
    except Failed as failed:
        texts = both_ends(failed.message), both_ends(failed.text)
        return Answer(number, "raised", 0.0, failed.kind, *texts, failed.body)
    except BaseException as error:  # noqa: BLE001  SystemExit and KeyboardInterrupt are outcomes too
        on_error()
        kind, message, text = describe(error)
        return Answer(number, "raised", 0.0, kind, both_ends(message), both_ends(text))


def _timeline() -> bytes:
    try:
        return current.timeline().encode(errors="replace")
    except Exception as broken:  # noqa: BLE001  the test may have broken what makes it
        return f"<the timeline could not be made: {type(broken).__name__}: {broken}>".encode(errors="replace")


def joined(_: bytes) -> bytes:
    """Do nothing: entering the run has made the process group."""
    return b""


def resolve(target: str) -> Callable[[bytes], bytes]:
    """Return the function that "module:function" names."""
    module, _, name = target.partition(":")
    function: Callable[[bytes], bytes] = getattr(importlib.import_module(module), name)
    return function


def describe(error: BaseException) -> tuple[str, str, str]:
    """Return the name of an exception's type, its message, and its traceback without our own frames."""
    try:
        message = str(error)
    except Exception as broken:  # noqa: BLE001  any code may be in its __str__
        message = f"<its message could not be made: {type(broken).__name__}>"
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except Exception:  # noqa: BLE001  as above
        text = f"{type(error).__name__}: {message}\n"
    return type(error).__qualname__, message, text


def run_rank(files: RankFiles) -> NoReturn:
    """Be a rank until the process ends here.

    Ends by `os._exit`: torch with gloo sometimes aborts in an orderly interpreter exit. Functions of `atexit` that were
    registered in this process run before; those of the parent process do not run.
    """
    status = 1
    atexit._clear()  # noqa: SLF001  as multiprocessing does in its children
    try:
        inbox = Inbox(_own(files))
        launch = inbox.receive()
        if isinstance(launch, Launch):
            _live(inbox, launch, files, _settle(files, launch))
            status = 0
    except BaseException:  # noqa: BLE001  nothing may run after this frame
        traceback.print_exc()
    finally:
        _exit(status)


def _own(files: RankFiles) -> socket.socket:
    """Keep the descriptors from processes that a test starts, so that they cannot send messages as this rank."""
    for fd in astuple(files):
        os.set_inheritable(fd, False)
    channel = socket.socket(fileno=files.channel)
    os.register_at_fork(after_in_child=channel.close)
    return channel


def _live(inbox: Inbox, launch: Launch, files: RankFiles, process_state: "ProcessState") -> None:
    Rank.current = rank = Rank(inbox, launch, files, process_state)
    try:
        if launch.host is None:
            rank.send(Answer(-1, "returned"))
            rank.serve()
        else:
            resolve(launch.host)(launch.body)
    except BaseException as error:  # noqa: BLE001  whatever the host raised is reported
        kind, message, text = describe(error)
        rank.send(Answer(-1, "raised", 0.0, kind, both_ends(message), both_ends(text)))
    else:
        atexit._run_exitfuncs()  # noqa: SLF001  likewise
    finally:
        process_state.flush()


def _settle(files: RankFiles, launch: Launch) -> "ProcessState":
    """Take the controller's directory, path and environment; write output and stacks to the shared files."""
    import torch  # noqa: PLC0415  already imported by the fork server

    os.chdir(launch.cwd)
    os.environ.clear()
    os.environ.update(launch.env)
    os.environ[NO_JOB] = "1"
    sys.path[:] = launch.sys_path
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    from pytest_ddp.rank.process_state import ProcessState  # noqa: PLC0415  POSIX only

    process_state = ProcessState(launch.cwd, files.stacks, files.output if launch.capture else None)
    process_state.restore()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setscheduler"):  # a rank that wakes up must not preempt the controller
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    return process_state
