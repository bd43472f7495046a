"""Runs the suite of a small library, as its maintainers would."""

from contextlib import nullcontext

import pytest

import conformance.library.ci
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

class WithGradients(Wrapped):
    def __init__(self, module):
        super().__init__(module)
        for p in module.parameters():
            p.grad = p.detach().clone().zero_()

def average(wrapped, optimizer):
    for p in wrapped.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

def summed(wrapped, optimizer):
    for p in wrapped.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)

def not_written(module):
    raise NotImplementedError

def no_float64(module):
    if any(p.dtype.itemsize == 8 for p in module.parameters()):
        raise TypeError("no float64")
    return Wrapped(module)
"""


@pytest.fixture
def library() -> str:
    """The text of the library."""
    return LIBRARY


@pytest.fixture
def run_library(pytester: pytest.Pytester, launcher: ForkServers, monkeypatch: pytest.MonkeyPatch):
    """Run the suite of a library in this process, on ranks from the session's fork servers."""
    monkeypatch.setattr("conformance.library.hold.fork_servers", lambda: nullcontext(launcher))
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    pytester.makepyfile(mylib=LIBRARY)

    def run(*arguments: str, known: str | None = "", world_size=2, **given: object) -> pytest.RunResult:
        wanted = {"wrap": "mylib:Wrapped", "after_backward": "mylib:average", "known_failures": "known_failures.txt"}
        options = ", ".join(f"{name}={value!r}" for name, value in {**wanted, **given}.items())
        call = f"test_conformance = conformance.verify({options})"
        pytester.makepyfile(test_mylib=f"import conformance\nfrom conformance import Claims\n\n{call}\n")
        if known is not None:
            pytester.path.joinpath("known_failures.txt").write_text(known)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", f"--ddp-world-size={world_size}", *arguments)

    return run
