"""The second half of the fault table: what needs pytest's own life cycle, each as a piece of a test module."""

from dataclasses import dataclass
from textwrap import dedent

from hanging import HANGING


@dataclass(frozen=True)
class TestFault:
    """What rank 1 does in `source`, which defines `test_it`; the phase that fails, and what its report says."""

    __test__ = False

    what: str
    source: str
    phase: str | None
    words: str

    def module(self) -> str:
        """Return a module with the test, and one that comes after it."""
        return f"{PREAMBLE}\n{dedent(self.source)}\n{NEXT}"


PREAMBLE = """
import atexit, json, os, sys, threading, time
import pytest, torch, torch.distributed as dist
from pytest_ddp import distributed

one = pytest.fixture(lambda ddp: ddp.rank == 1)
"""
NEXT = """
@distributed(world_size=2)
def test_next(ddp, tmp_path, capsys):
    total = torch.ones(2)
    dist.all_reduce(total)
    assert total.tolist() == [2.0, 2.0]
    print("fine")
    assert capsys.readouterr().out == "fine\\n"
"""


def in_test(statement: str, **options: object) -> str:
    """Return a test in which rank 1 does `statement`."""
    given = "".join(f", {name}={value}" for name, value in options.items())
    return f"@distributed(world_size=2{given})\ndef test_it(one):\n    if one: {statement}\n    dist.barrier()\n"


def in_fixture(before: str, after: str, **options: object) -> str:
    """Return a test with a fixture in which rank 1 does something before the test, or after it."""
    given = "".join(f", {name}={value}" for name, value in options.items())
    return (
        f"@pytest.fixture\ndef broken(one):\n    if one: {before}\n    yield\n    if one: {after}\n"
        f"@distributed(world_size=2{given})\ndef test_it(broken): pass\n"
    )


HANG = 1.5
HANGS = f"print({HANGING!r}, flush=True), threading.Event().wait()"
HUNG = f"was still running at its deadline of {HANG:g} s"

FORK = """
@distributed(world_size=2)
def test_it(one):
    if one and os.fork() == 0:
        return
    if one:
        os.wait()
    dist.barrier()
"""

TEST_FAULTS = [
    TestFault("a fixture raises", in_fixture("raise ValueError('no model')", "pass"), "setup", "ValueError: no model"),
    TestFault("a fixture exits", in_fixture("os._exit(4)", "pass"), "setup", "exited with code 4"),
    TestFault("a fixture hangs", in_fixture(HANGS, "pass", timeout=HANG), "setup", HUNG),
    TestFault("teardown raises", in_fixture("pass", "raise ValueError('late')"), "teardown", "ValueError: late"),
    TestFault("teardown exits", in_fixture("pass", "os._exit(4)"), "teardown", "exited with code 4"),
    TestFault("teardown hangs", in_fixture("pass", HANGS, timeout=HANG), "teardown", HUNG),
    TestFault("the test exits", in_test("os._exit(0)"), "call", "exited with code 0"),
    TestFault("the test interrupts itself", in_test("raise KeyboardInterrupt"), "call", "raised KeyboardInterrupt"),
    TestFault("closes stdout", in_test("sys.stdout.close(), os.close(1)"), None, ""),
    TestFault("forks; the child comes back", FORK, None, "has returned"),
    TestFault("deletes its folder", in_test("os.mkdir('gone'), os.chdir('gone'), os.rmdir('../gone')"), None, ""),
    TestFault("replaces `json.dumps`, `time.sleep`", in_test("json.dumps = time.sleep = None"), None, ""),
]
