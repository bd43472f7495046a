"""Starts torchrun on simulated nodes: one agent on each, which starts pytest."""

import re
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from simulated_nodes import Command, Node, Nodes

TORCHRUN = str(Path(sysconfig.get_path("scripts")) / "torchrun")
PORT = 29_400
REPOSITORY = Path(__file__).parents[3]
# gloo and torchrun need no more, and each thread of the others would take a core from them.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}


@dataclass
class Job:
    """A job of torchrun.

    Attributes:
        nodes: its nodes.
        folder: the project whose tests it runs.
        agents: the command of each node, in the order of the nodes.
    """

    nodes: Nodes
    folder: Path
    agents: list[Command] = field(default_factory=list)

    def start(self, number: int, *options: str, processes: int = 1) -> None:
        """Start the agent of a node."""
        pytest = ("pytest", "-p", "no:cacheprovider", "-v", "-rs", str(self.folder / "test_suite.py"))
        command = (TORCHRUN, *options, f"--nproc-per-node={processes}", "-m", *pytest)
        self.agents.append(self.nodes[number].start(*command, cwd=self.folder, env=ONE_THREAD))

    def start_all(self, *processes: int, options: Callable[[int], Sequence[str]] | None = None) -> None:
        """Start all agents; they meet in a store that node 0 keeps."""
        for number, count in enumerate(processes):
            self.start(number, *(options or self.dynamic)(number), processes=count)

    def dynamic(self, _: int = 0) -> Sequence[str]:
        """Return the options of an elastic rendezvous, the usual way."""
        return f"--nnodes={len(self.nodes)}", "--rdzv-backend=c10d", f"--rdzv-endpoint=node0:{PORT}", "--rdzv-id=job"

    def static(self, number: int) -> Sequence[str]:
        """Return the options of a job whose nodes know their numbers."""
        return f"--nnodes={len(self.nodes)}", f"--node-rank={number}", "--master-addr=node0", f"--master-port={PORT}"

    @property
    def report(self) -> str:
        """What the first node has printed."""
        return self.agents[0].output

    def wait(self, seconds: float = 200) -> list[int]:
        """Wait until all agents have ended; return their exit codes."""
        end = time.monotonic() + seconds
        return [agent.wait(max(0.1, end - time.monotonic())) for agent in self.agents]

    def wait_until_tests_begin(self, ranks: int) -> None:
        """Wait until each rank is in the first test."""
        files = [self.folder / f"begun-{rank}" for rank in range(ranks)]
        while not all(file.exists() for file in files):
            assert all(agent.running() for agent in self.agents), "\n".join(agent.output for agent in self.agents)
            time.sleep(0.02)

    @property
    def results(self) -> dict[str, str]:
        """What became of each test, by its name."""
        return dict(re.findall(r"^test_suite.py::(\w+) ([A-Z]+) ", self.report, re.MULTILINE))

    def left(self, *nodes: Node) -> list[str]:
        """Return the processes that are left on nodes, by default on all of them."""
        return [command for node in nodes or self.nodes for command in node.processes()]

    def pytest_on(self, number: int) -> list[psutil.Process]:
        """Return the processes that the agent of a node has started."""
        return self.agents[number].process.children()

    def wait_until_no_test_is_left(self) -> None:
        """Wait until no process is left but agents: torch's agent of a node that is cut off waits for its store."""
        while any(TORCHRUN not in command for command in self.left()):
            time.sleep(0.1)


def project(folder: Path, *texts: str) -> Path:
    """Write a project with one test module."""
    folder.mkdir()
    (folder / "test_suite.py").write_text("\n".join(texts), encoding="utf-8")
    options = "addopts = ['-p', 'no:randomly', '-p', 'no:asyncio']"
    (folder / "pytest.toml").write_text(f"[pytest]\n{options}\n", encoding="utf-8")
    return folder
