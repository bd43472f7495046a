"""A rank: a process that answers runs until it is told to close."""

import faulthandler
import importlib
import io
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from pytest_ddp.blackbox import BlackBox
from pytest_ddp.bounds import both_ends
from pytest_ddp.messages import Answer, Close, Debugging, Launch, Ready, Run, encode, receive

# Windows has neither; there, this module is imported and no rank runs.
DUMP_SIGNAL: int = getattr(signal, "SIGRTMIN", getattr(signal, "SIGUSR1", 0))


@dataclass(frozen=True)
class Files:
    """The file descriptors that a rank shares with the controller."""

    channel: int
    output: int
    stacks: int
    box: int


class Failed(Exception):  # noqa: N818  a target's way to fail with more than an exception's text
    """Raised by a target to give its own account of a failure; `body` travels to the controller."""

    def __init__(self, kind: str, message: str, text: str, body: bytes) -> None:
        super().__init__(kind, message, text, body)
        self.kind, self.message, self.text, self.body = kind, message, text, body


class Answered(BaseException):
    """Raised by a target that has already answered its run through `Rank.answer`."""


class SkipRun(Exception):  # noqa: N818  likewise
    """Raised by a target that asks to be skipped."""


class Rank:
    """This process's side of the conversation with the controller."""

    current: "Rank"

    def __init__(self, channel: socket.socket, launch: Launch, box: BlackBox) -> None:
        from pytest_ddp.group import GroupKeeper  # noqa: PLC0415  imports torch: not before it must

        self.launch = launch
        self.closing = False
        self.run: Run | None = None
        self._channel = channel
        self._box = box
        self._groups = GroupKeeper(launch.rank, launch.store)

    def serve(self, until: Callable[[], bool] = lambda: False) -> None:
        """Answer runs until the controller says close or is gone, or `until()` holds after a run."""
        while not self.closing and not until():
            message = receive(self._channel)
            if isinstance(message, Run):
                self._answer_run(message)
            else:
                self.closing = message is None or isinstance(message, Close)

    def answer(
        self, outcome: str, *, body: bytes = b"", kind: str = "", message: str = "", traceback: str = ""
    ) -> None:
        """Send the outcome of the run at hand."""
        if self.run is None:
            raise RuntimeError("there is no run to answer")
        self._flush()
        seconds = time.perf_counter() - self._started
        self.send(Answer(self.run.number, outcome, seconds, kind, both_ends(message), both_ends(traceback), body))

    def answer_failed(self, failed: "Failed") -> None:
        """Send that the run at hand failed, in the target's own words."""
        self.answer("raised", kind=failed.kind, message=failed.message, traceback=failed.text, body=failed.body)

    def send(self, message: Answer | Ready | Debugging) -> None:
        """Send a message to the controller; leave if it is gone."""
        try:
            self._channel.sendall(encode(message))
        except OSError:
            os._exit(1)

    def _answer_run(self, run: Run) -> None:
        outer, self.run, self._started = self.run, run, time.perf_counter()
        try:
            if outer is None or run.group != outer.group:
                self._box.clear()
            self._groups.enter(run)
            self.answer("returned", body=resolve(run.target)(run.body))
        except Answered:
            pass
        except SkipRun as skip:
            self.answer("skipped", message=str(skip))
        except Failed as failed:
            self.answer_failed(failed)
        except BaseException as error:  # noqa: BLE001  SystemExit and KeyboardInterrupt are outcomes like any other
            kind, message, text = describe(error)
            self.answer("raised", kind=kind, message=message, traceback=text)
        finally:
            self.run = outer

    @staticmethod
    def _flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()


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
    return os.path.dirname(filename) == os.path.dirname(__file__)  # noqa: PTH120  plain strings: frames of any origin


def run_rank(files: Files) -> NoReturn:
    """Be a rank: the whole life of its process, which ends here.

    Leaves by `os._exit` because torch with gloo now and then aborts in an orderly interpreter exit.
    """
    status = 1
    try:
        channel = socket.socket(fileno=files.channel)
        launch = receive(channel)
        if isinstance(launch, Launch):
            _settle(files, launch)
            _live(channel, launch, BlackBox.map(files.box))
            status = 0
    except BaseException:  # noqa: BLE001  nothing may run past this frame in a forked process
        traceback.print_exc()
    finally:
        try:
            Rank._flush()  # noqa: SLF001
        finally:
            os._exit(status)


def _live(channel: socket.socket, launch: Launch, box: BlackBox) -> None:
    from pytest_ddp.collectives import watch_collectives  # noqa: PLC0415  imports torch: not before it must

    Rank.current = rank = Rank(channel, launch, box)
    try:
        with watch_collectives(lambda collective: box.write(str(collective))):
            if launch.host is None:
                rank.send(Ready())
                rank.serve()
            else:
                resolve(launch.host)(launch.body)
    except BaseException as error:  # noqa: BLE001  a host that fails to start is reported, whatever it raised
        rank.send(Answer(-1, "raised", 0.0, *describe(error)))


def _settle(files: Files, launch: Launch) -> None:
    """Take on the controller's folder, path and environment; send output and stacks where the controller reads them."""
    import torch  # noqa: PLC0415  already imported by the fork server

    os.chdir(launch.cwd)
    os.environ.clear()
    os.environ.update(launch.env)
    sys.path[:] = launch.sys_path
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if launch.capture:
        os.dup2(files.output, 1)
        os.dup2(files.output, 2)
    sys.stdout, sys.stderr = _text(1), _text(2)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]  # the originals belong to the parent
    faulthandler.enable(file=files.stacks, all_threads=True)
    faulthandler.register(DUMP_SIGNAL, file=files.stacks, all_threads=True, chain=False)
    torch.set_num_threads(1)


def _text(fd: int) -> io.TextIOWrapper:
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
