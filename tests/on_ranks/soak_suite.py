"""Two thousand mixed tests as text: 20 modules, 20 kinds of test, each 5 times."""

MODULES = 20
REPEATS = 5
TIMES = MODULES * REPEATS  # that each kind of test runs
# What becomes of the kinds below; a teardown error comes on top of a pass.
OUTCOMES = {"passed": 12 * TIMES, "failed": 4 * TIMES, "skipped": 2 * TIMES, "xfailed": 2 * TIMES, "errors": TIMES}

MODULE = """
import os
import pytest, torch, torch.distributed as dist
from pytest_ddp import distributed

pytestmark = pytest.mark.parametrize("n", range({repeats}))

def total():
    value = torch.ones(1000)
    dist.all_reduce(value)
    return value[0].item()

@pytest.fixture(scope="session")
def for_all():
    yield torch.zeros(10)

@pytest.fixture(scope="module")
def for_module(for_all):
    yield torch.zeros(1000)

@pytest.fixture(scope="class")
def for_class(for_module):
    yield for_module + 1

@pytest.fixture
def model(ddp):
    yield torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))

@pytest.fixture
def bad_teardown():
    yield
    raise ValueError("late")

def test_plain(n): assert n >= 0

def test_plain_with_fixture(n, tmp_path): (tmp_path / "x").write_text("x")

def test_plain_fails(n): assert n < 0

@distributed(world_size=1)
def test_one(n): assert total() == 1

@distributed(world_size=2)
def test_two(n): assert total() == 2

@distributed(world_size=4)
def test_four(n): assert total() == 4

@distributed(world_size=2)
def test_prints(n, capsys): print("x" * 10_000)

@distributed(world_size=2)
def test_trains(n, model): model(torch.ones(4, 8)).sum().backward()

class TestFixtures:
    @distributed(world_size=2)
    def test_class_scope(self, n, for_class, tmp_path): assert for_class.sum() == 1000

    @distributed(world_size=2)
    def test_module_scope(self, n, for_module): assert total() == 2

@distributed(world_size=2)
def test_fails_on_one(n, ddp): assert ddp.rank == 0

@distributed(world_size=2)
def test_fails_on_all(n): raise ValueError("all")

@distributed(world_size=2)
def test_dies(n, ddp):
    if ddp.rank == 1:
        os._exit(3)
    dist.barrier()

@pytest.mark.skip(reason="never")
@distributed(world_size=2)
def test_skipped(n): pass

@distributed(world_size=2)
def test_skips(n): pytest.skip("here")

@pytest.mark.xfail
@distributed(world_size=2)
def test_xfails(n): assert total() == 3

@pytest.mark.xfail
def test_plain_xfails(n): assert False

@distributed(world_size=2)
def test_late(n, bad_teardown): pass

@distributed(world_size=2, isolation="{isolation}")
def test_apart(n): assert total() == 2

def test_calls(n, ddp_ranks): assert ddp_ranks(world_size=2).run(total) == [2.0, 2.0]
"""

# Written down after every 100 tests: what the controller and the processes below it hold.
CONFTEST = """
import json, os, pathlib, psutil

seen, held = 0, []

def holds(process):
    with process.oneshot():
        memory = process.memory_full_info().uss / 2**20
        return [process.pid, process.num_fds(), process.num_threads(), memory]

def pytest_runtest_logfinish(nodeid, location):
    global seen
    seen += 1
    if seen % 100 == 0:
        me = psutil.Process()
        below = me.children(recursive=True)
        ranks = [p for p in below if p.ppid() != me.pid and p.status() != psutil.STATUS_ZOMBIE]
        held.append([holds(me), *map(holds, ranks)])

def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        pathlib.Path("held.json").write_text(json.dumps(held))
"""


def modules() -> dict[str, str]:
    """Return the modules by name; every fifth runs some tests in processes of their own."""
    isolation = ["process" if number % 5 == 0 else "warm" for number in range(MODULES)]
    return {
        f"test_soak_{number:02}": MODULE.format(repeats=REPEATS, isolation=isolation[number])
        for number in range(MODULES)
    }
