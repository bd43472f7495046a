"""Errors whose text does not lead to their cause come with advice."""

import pytest

from pytest_ddp.outcomes.failure import headline
from pytest_ddp.outcomes.hints import hint
from pytest_ddp.outcomes.outcome import Raised

CASES = {
    "trying to initialize the default process group twice!": "@distributed has made the process group before the test",
    "env:// rendezvous: environment variable MASTER_ADDR expected, but not set": "need no address: dist.init_",
    "Default process group has not been initialized, please make sure": "something in the test has destroyed it",
    "No backend type associated with device type cpu": "cannot move tensors on cpu: put them on ddp.device",
    "fixture 'only_here' not found": "if plain tests find 'only_here', it comes from a plugin that only pytest's own",
    "[c10d] The server socket has failed to listen: EADDRINUSE": "let the system choose a port",
    "[Errno 98] Address already in use": "let the system choose a port",
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
