"""`conformance.verify` in a test file of a library: its items, and how each ends."""

from contextlib import nullcontext

import pytest

import conformance.library.verify  # noqa: F401  an inner run would import it and forget it
from conformance.execution.fork_servers import ForkServers

LIBRARY = """
import torch.distributed as dist
from torch import nn

class Wrapped(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.data, src=0)

    def forward(self, *inputs, **options):
        return self.module(*inputs, **options)

def average(wrapped, optimizer):
    for p in wrapped.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

def summed(wrapped, optimizer):
    for p in wrapped.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
"""
SUITE = """
import conformance

test_conformance = conformance.verify(wrap="mylib:Wrapped", after_backward="mylib:average", {more})
"""
AVERAGED = "ddp-gradients_averaged"


@pytest.fixture
def run_library(pytester: pytest.Pytester, launcher: ForkServers, monkeypatch: pytest.MonkeyPatch):
    """Run the suite of a library in this process, on ranks from the session's fork servers."""
    monkeypatch.setattr("conformance.library.hold.fork_servers", lambda: nullcontext(launcher))
    pytester.makepyfile(mylib=LIBRARY)

    def run(suite: str, *arguments: str, known: str = "", world_size=2) -> pytest.RunResult:
        pytester.makepyfile(test_mylib=suite)
        pytester.path.joinpath("known_failures.txt").write_text(known)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", f"--ddp-world-size={world_size}", *arguments)

    return run


def test_each_check_is_an_item_that_can_be_selected(run_library):
    run = run_library(SUITE.format(more=""), "-v", "-k", AVERAGED)
    run.assert_outcomes(passed=1, deselected=run.parseoutcomes()["deselected"])
    run.stdout.fnmatch_lines(["test_mylib.py::test_conformance[[]ddp-gradients_averaged[]] PASSED*"])


def test_a_failure_that_is_not_listed_fails_with_its_cause_and_how_to_repeat_it(run_library):
    run = run_library(SUITE.format(more="").replace("average", "summed"), "-k", AVERAGED)
    assert run.ret == pytest.ExitCode.TESTS_FAILED
    said = run.stdout.str()
    assert "summed, not averaged" in said
    again = 'To repeat it: pytest "test_mylib.py::test_conformance[ddp-gradients_averaged]" --ddp-seed=0'
    assert f"{again} --ddp-world-size=2" in said


LISTED = SUITE.format(more='known_failures="known_failures.txt"')


def test_a_failure_that_is_listed_is_expected(run_library):
    known = "# by design\nddp gradients_averaged it sums\n"
    run = run_library(LISTED.replace("average", "summed"), "-rx", "-k", AVERAGED, known=known)
    assert run.parseoutcomes()["xfailed"] == 1
    run.stdout.fnmatch_lines(["XFAIL *ddp-gradients_averaged* known failure: it sums"])


def test_a_listed_check_that_passes_fails_with_the_line_to_delete(run_library):
    run = run_library(LISTED, "-k", AVERAGED, known="# by design\nddp gradients_averaged it sums\n")
    assert run.ret == pytest.ExitCode.TESTS_FAILED
    said = run.stdout.str()
    assert "This check passes, and known_failures.txt lists it as a known failure. Delete line 2:" in said
    assert "    ddp gradients_averaged it sums" in said


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (
            "ddp gradients_averagd why",
            "ddp has no check `gradients_averagd`. Is `gradients_averaged` meant? Correct or",
        ),
        ("fsdp nothing_grows why", "`fsdp` is not verified here; verified are ddp. Correct or delete the line."),
        ("\nddp gradients_averaged", "line 2: `ddp gradients_averaged` has no reason. Write one behind it: "),
        (
            "ddp trains[buffers] a\nddp no_sync b\nddp no_sync c",
            "line 3: `ddp no_sync` is in line 2 already. Delete one of",
        ),
    ],
)
def test_a_wrong_line_is_an_error_at_collection(run_library, known, words):
    run = run_library(LISTED, "--collect-only", known=known)
    assert run.ret == pytest.ExitCode.INTERRUPTED
    assert words in run.stdout.str()
    assert "Traceback" not in run.stdout.str()
