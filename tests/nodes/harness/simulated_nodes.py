"""Nodes of a cluster, simulated on this machine by namespaces of Linux.

A node has a network, a host name, processes and a /dev/shm of its own. It shares the file system with the others, as
the nodes of a cluster do. All nodes are joined by one switch:

    node0: eth0 10.56.0.1 ──veth── port0 ┐
    node1: eth0 10.56.0.2 ──veth── port1 ┤ bridge `switch`, in a network namespace of its own
    node2: eth0 10.56.0.3 ──veth── port2 ┘

Each namespace lives only as long as its first process (`FIRST`). That process ends when its stdin closes, and the
kernel kills all others with it. So nothing is left when the process that made the nodes is killed.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

import psutil

Found = TypeVar("Found")
# The first process of a namespace: it collects orphans that ended, and ends when its stdin closes.
FIRST = "import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print('up', flush=True); sys.stdin.read()"
PYTHON = (sys.executable, "-I", "-S", "-c")
SWITCH = ("--net", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child")
NODE = ("--net", "--pid", "--mount", "--mount-proc", "--uts", "--ipc", "--fork", "--kill-child")
# On most machines, a user who is not root may make namespaces inside a user namespace.
USER = () if os.geteuid() == 0 else ("--user", "--map-root-user")
ENTER_USER = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
LISTEN = """
import signal, socket, sys
server = socket.create_server(("", int(sys.argv[1])))
print("up", flush=True)
signal.pause()
"""
SLOW_LINK = Path(__file__).parent / "slow_link.py"
# gloo looks for the address of its host's name.
TRIED = "ip link add one type veth peer name two && ip link add three type bridge && test -w /dev/net/tun"
UP = """
mount --bind {folder}/hosts /etc/hosts
mount -t tmpfs tmpfs /dev/shm
hostname {name}
ip link set lo up
exec "$@"
"""


def missing() -> str | None:
    """Return why this machine cannot simulate nodes; None if it can."""
    try:
        tried = _made((*USER, *NODE), TRIED)
    except FileNotFoundError as error:
        return f"{error.filename} is not installed"
    except subprocess.TimeoutExpired:
        return "making a network namespace takes longer than 20 s"
    return None if tried.returncode == 0 else f"no network namespaces here: {tried.stderr.strip() or tried.returncode}"


def _made(namespaces: Sequence[str], script: str) -> subprocess.CompletedProcess[str]:
    command = ["unshare", *namespaces, "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


class Command:
    """A command that runs on a node; its output goes into a file."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._entered = process
        self._output = output

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._output.read_text(errors="replace")

    @property
    def process(self) -> psutil.Process:
        """The command itself; the child of the process that entered the node."""
        entered = psutil.Process(self._entered.pid)
        return _awaited(lambda: next(iter(entered.children()), None), "the command to start")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal; its own children get none."""
        self.process.send_signal(number)

    def running(self) -> bool:
        """Return whether it has not ended."""
        return self._entered.poll() is None

    def wait(self, seconds: float = 120) -> int:
        """Return its exit code, 128 + N if signal N killed it; raise TimeoutExpired with its output."""
        try:
            code = self._entered.wait(seconds)
        except subprocess.TimeoutExpired as error:
            error.add_note(self.output)
            raise
        return code if code >= 0 else 128 - code

    def wait_for(self, text: str, seconds: float = 120) -> None:
        """Wait until it has printed a text; fail if it ends before that."""
        _awaited(lambda: text in self.output or not self.running() or None, repr(text), seconds)
        assert text in self.output, f"ended before it printed {text!r}:\n{self.output}"


class Node:
    """One node: runs commands, and loses its link or its power."""

    def __init__(self, cluster: "Nodes", number: int) -> None:
        self.name = f"node{number}"
        self.address = f"10.56.0.{number + 1}"
        self._cluster = cluster
        self._port = f"port{number}"
        self._slow: subprocess.Popen[str] | None = None
        self.folder = cluster.folder / self.name
        (self.folder / "tmp").mkdir(parents=True)
        up = ("sh", "-ec", UP.format(folder=cluster.folder, name=self.name), "up", *PYTHON, FIRST)
        self._life = cluster.open(*cluster.enter("net", "pid"), "unshare", *NODE, *up)
        self.first = _first_of(self._life)
        cluster.ip(
            f"link add {self._port} type veth peer name eth0 netns {self.first}",
            f"link set {self._port} master switch up",
        )
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def start(self, *command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Command:
        """Start a command on this node; variables are added to the environment of this process."""
        output = self.folder / f"output{len(list(self.folder.glob('output*')))}"
        variables = {**os.environ, "TMPDIR": str(self.folder / "tmp"), **(env or {})}
        into = _enter(self.first, "net", "pid", "mount", "uts", "ipc")
        entered = (*into, f"--wdns={cwd or Path.cwd()}", "--", *command)
        with output.open("wb") as file:
            process = subprocess.Popen(
                entered, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=variables
            )
        self._cluster.entered.append(process)
        return Command(process, output)

    def run(self, *command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        """Run a command on this node and return its output; fail if its exit code is not 0."""
        running = self.start(*command, cwd=cwd, env=env)
        code = running.wait()
        assert code == 0, f"{' '.join(command)} on {self.name} exited with code {code}:\n{running.output}"
        return running.output

    def reaches(self, other: "Node", port: int) -> bool:
        """Return whether a TCP connection from here to a listener on another node is made within 2 s."""
        connect = f"import socket; socket.create_connection(({other.address!r}, {port}), timeout=2)"
        return self.start(*PYTHON, connect).wait() == 0

    def take_port(self, port: int) -> Command:
        """Listen on a port of this node, until the command is killed."""
        listener = self.start(*PYTHON, LISTEN, str(port))
        listener.wait_for("up")
        return listener

    def cut(self) -> None:
        """Unplug the node at the switch: its packets and those to it are lost without an error."""
        self._cluster.ip(f"link set {self._port} nomaster")

    def restore(self) -> None:
        """Plug the node in again, on a link without delay."""
        self._cluster.ip(f"link set {self._port} master switch")
        if self._slow:
            self._slow.communicate()
            self._slow = None

    def delay(self, seconds: float) -> None:
        """Let each packet from and to this node take so many seconds."""
        taps = (f"{self._port}-a", f"{self._port}-b")
        command = (*PYTHON[:-1], str(SLOW_LINK), *taps, str(seconds))
        self._slow = self._cluster.open(*self._cluster.enter("net"), *command)
        self._cluster.ip(
            f"link add {self._port}-slow type bridge",
            f"link set {self._port}-slow up",
            f"link set {self._port} master {self._port}-slow",
            f"link set {taps[0]} master {self._port}-slow up",
            f"link set {taps[1]} master switch up",
        )

    def power_off(self) -> None:
        """End the node as a power cut does: no packet announces it, and all its processes are killed."""
        self.cut()
        os.kill(self.first, signal.SIGKILL)
        self._life.wait()

    def processes(self) -> list[str]:
        """Return the command lines of the processes on this node."""
        return [" ".join(process.cmdline()) for process in self._alive()]

    def _alive(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                theirs = Path(f"/proc/{process.pid}/ns/pid").readlink()
                if theirs == self._namespace and process.status() != psutil.STATUS_ZOMBIE and process.pid != self.first:
                    yield process

    @property
    def _namespace(self) -> Path | None:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.first}/ns/pid").readlink()
        return None


class Nodes:
    """Nodes that are joined by a switch; a context manager that ends them and all their processes."""

    def __init__(self, count: int, folder: Path) -> None:
        self.folder = folder
        self.entered: list[subprocess.Popen[bytes]] = []
        self._opened: list[subprocess.Popen[str]] = []
        names = "".join(f"10.56.0.{number + 1} node{number}\n" for number in range(count))
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        try:
            self._switch = _first_of(self.open("unshare", *USER, *SWITCH, *PYTHON, FIRST))
            self.ip("link add switch type bridge", "link set switch up")
            self._nodes = [Node(self, number) for number in range(count)]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, number: int) -> Node:
        return self._nodes[number]

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def close(self) -> None:
        """End all nodes and wait until their processes have ended."""
        for process in self._opened:
            process.communicate()  # closes its stdin, so it ends, and the kernel ends what is below it first
        for command in self.entered:
            command.wait()

    def enter(self, *namespaces: str) -> tuple[str, ...]:
        """Return the beginning of a command that runs in namespaces of the switch."""
        return (*_enter(self._switch, *namespaces), "--")

    def open(self, *command: str) -> subprocess.Popen[str]:
        """Start a command that runs until its stdin closes, and wait until it prints that it is up."""
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._opened.append(process)
        assert process.stdout
        assert process.stdout.readline() == "up\n", f"{' '.join(command)} did not start"
        return process

    def ip(self, *commands: str) -> None:
        """Run commands of `ip` in the switch's network."""
        subprocess.run([*self.enter("net"), "ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)


def _enter(process: int, *namespaces: str) -> tuple[str, ...]:
    return ("nsenter", f"--target={process}", *ENTER_USER, *(f"--{name}" for name in namespaces))


def _first_of(opened: subprocess.Popen[str]) -> int:
    """Return the process id, as seen from here, of the process below `unshare` and `nsenter` that is up."""
    below = psutil.Process(opened.pid).children(recursive=True)
    return below[-1].pid


def _awaited(look: Callable[[], Found | None], what: str, seconds: float = 120) -> Found:
    end = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.02)
    return found
