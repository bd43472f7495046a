"""The fork server starts during the import of the first module with distributed tests, and not without one."""

import psutil
import pytest

# Inner runs are subprocesses, because a fork server runs in this process already.
WATCHING = """
from pytest_ddp.pool.launcher import shared_launcher

def pytest_sessionfinish():
    print("fork server begun:", shared_launcher()._server is not None)
"""


def run(pytester: pytest.Pytester, source: str, *args: str) -> pytest.RunResult:
    pytester.makeconftest(WATCHING)
    pytester.makepyfile(test_suite=source)
    return pytester.runpytest_subprocess("-s", "-p", "no:cacheprovider", *args)


IMPORTED = """
import os
from pytest_ddp.pool.launcher import shared_launcher
begun = shared_launcher()._server is not None
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"  # torch reads it when it is imported
import pytest
import torch.distributed as dist
"""


def test_it_starts_while_a_module_is_imported_and_ranks_see_variables_that_the_module_sets(pytester):
    source = f"""{IMPORTED}
from pytest_ddp import distributed

@distributed(world_size=2)
def test_ranks():
    assert dist.get_debug_level() == dist.DebugLevel.INFO

def test_begun():
    assert begun
"""
    run(pytester, source).assert_outcomes(passed=2)


def test_plain_tests_start_none(pytester):
    result = run(pytester, "def test_plain(): pass")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*fork server begun: False"])


@pytest.mark.parametrize("planned", ["--co", "--setup-plan"])
def test_plans_start_none(pytester, planned):
    source = "from pytest_ddp import distributed\n\n@distributed(world_size=2)\ndef test_ranks(): pass\n"
    run(pytester, source, planned).stdout.fnmatch_lines(["*fork server begun: False"])


def test_a_module_that_cannot_be_imported_leaves_none_behind(pytester):
    source = "import pytest_ddp\nfrom pytest_ddp.pool.launcher import shared_launcher\n"
    source += "open('server', 'w').write(str(shared_launcher()._server.pid))\nraise ImportError('no')\n"
    run(pytester, source).assert_outcomes(errors=1)
    assert not psutil.pid_exists(int((pytester.path / "server").read_text()))
