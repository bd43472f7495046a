"""A report gives advice on errors whose message does not lead to their cause."""

import pytest

from pytest_ddp.outcomes.failure import headline, hint
from pytest_ddp.outcomes.outcome import Raised

CASES = {
    "trying to initialize the default process group twice!": "@distributed has already created the process group",
    "env:// rendezvous: environment variable MASTER_ADDR expected, but not set": "without it, write dist.init_",
    "Default process group has not been initialized, please make sure": "either the test has destroyed it",
    "No backend type associated with device type cpu": "cannot send tensors on cpu: move them to ddp.device",
    "fixture 'only_here' not found": "if plain tests find 'only_here', it is from a plugin that is registered",
    "[c10d] The server socket has failed to listen: EADDRINUSE": "let the system choose one (port 0)",
    "[Errno 98] Address already in use": "let the system choose one (port 0)",
    "EOF when reading a line": "ranks have no standard input",
}


@pytest.mark.parametrize("message", CASES)
def test_known_errors_have_advice(message):
    assert CASES[message] in str(hint(message))


def test_other_errors_have_none():
    assert hint("assert 1 == 2") is None


def test_the_advice_on_the_root_cause_is_part_of_the_report():
    (message, *_), (advice, *_) = CASES, CASES.values()
    root = Raised(rank=0, kind="ValueError", message=message, traceback="")
    assert headline([root]).splitlines()[1].startswith(f"  hint: {advice}")
