"""The same trivial test (one all-reduce, one assert) written for every harness, a test module each.

DeepSpeed's `DistributedTest` is not among them: it lives in the tests folder of DeepSpeed's repository, and the package
in the registry comes without it.
"""

from dataclasses import dataclass

CONFTEST = """
import json, pathlib, time
starts, without_pytest = [], {}

def pytest_collection_modifyitems(items):
    "Quick tests of ours take turns in blocks, so that what else the machine does weighs on all of them alike."
    items.sort(key=lambda item: item.callspec.params["number"] // 20 if hasattr(item.module, "IN_TURN") else -1)

def pytest_runtest_logstart(nodeid):
    starts.append((nodeid, time.perf_counter()))

def pytest_runtest_logreport(report):
    assert not report.failed, report.longreprtext
    without_pytest.update((report.nodeid, value) for name, value in report.user_properties if name == "seconds")

def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):  # ranks have sessions too; only the controller reports
        ends = [start for _, start in starts[1:]] + [time.perf_counter()]
        seconds = {nodeid: end - start for (nodeid, start), end in zip(starts, ends)}
        pathlib.Path("seconds.json").write_text(json.dumps({**seconds, **without_pytest}))
"""

HEAD = """
import time
import pytest, torch, torch.distributed as dist, torch.multiprocessing as mp
from pytest_ddp import World, distributed
from pytest_ddp.outcomes.failure import raise_for
from pytest_ddp.pool.pool import RankPool

SIZE = {size}

def body(_=b""):
    total = torch.ones(4)
    dist.all_reduce(total)
    assert total[0] == SIZE
    return b""
"""


@dataclass(frozen=True)
class Way:
    """One way to run the trivial test; `speed` says how long it takes, and so how often it is run."""

    name: str
    title: str
    isolation: str
    speed: str
    source: str


REUSED, FRESH, PROCESSES = "group reused", "fresh group", "new processes"

WAYS = [
    Way(
        "pool_reused",
        "pytest-ddp: bare pool, one group",
        REUSED,
        "quick",
        """
IN_TURN = True

@pytest.fixture(scope="session")
def group():
    with RankPool() as ranks, ranks.group(World(SIZE)) as group:
        yield group

@pytest.mark.parametrize("number", range({count}))
def test_pool_reused(number, group, record_property):
    start = time.perf_counter()
    outcomes = group.run(f"{{__name__}}:body", timeout=60)
    record_property("seconds", time.perf_counter() - start)
    raise_for(outcomes)
""",
    ),
    Way(
        "shared",
        "pytest-ddp: @distributed, a fixture's group",
        REUSED,
        "quick",
        """
IN_TURN = True

@distributed(world_size=SIZE)
@pytest.fixture(scope="module")
def group(ddp): return ddp.group

@pytest.mark.parametrize("number", range({count}))
@distributed
def test_shared(number, group): body()
""",
    ),
    Way(
        "continuous",
        "torch MultiProcContinuousTest",
        REUSED,
        "quick",
        """
from torch.testing._internal.common_distributed import MultiProcContinuousTest

class TestContinuous(MultiProcContinuousTest):
    world_size = SIZE

    @classmethod
    def backend_str(cls): return "gloo"

    @classmethod
    def device_type(cls): return "cpu"

for number in range({count}):
    setattr(TestContinuous, f"test_continuous_{{number}}", lambda self: body() and None)
""",
    ),
    Way(
        "pool_fresh",
        "pytest-ddp: bare pool, a group each",
        FRESH,
        "quick",
        """
IN_TURN = True

@pytest.fixture(scope="session")
def pool():
    with RankPool() as ranks:
        yield ranks

@pytest.mark.parametrize("number", range({count}))
def test_pool_fresh(number, pool, record_property):
    start = time.perf_counter()
    outcomes = pool.run(World(SIZE), f"{{__name__}}:body", timeout=60)
    record_property("seconds", time.perf_counter() - start)
    raise_for(outcomes)
""",
    ),
    Way(
        "warm",
        "pytest-ddp: @distributed",
        FRESH,
        "quick",
        """
IN_TURN = True

@pytest.mark.parametrize("number", range({count}))
@distributed(world_size=SIZE)
def test_warm(number): body()
""",
    ),
    Way(
        "own",
        'pytest-ddp: @distributed(isolation="process")',
        PROCESSES,
        "middling",
        """
@pytest.mark.parametrize("number", range({count}))
@distributed(world_size=SIZE, isolation="process")
def test_own(number): body()
""",
    ),
    Way(
        "spawn",
        "mp.spawn in the test",
        PROCESSES,
        "slow",
        """
def spawned(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{{store}}", rank=rank, world_size=SIZE)
    body()
    dist.destroy_process_group()

@pytest.mark.parametrize("number", range({count}))
def test_spawn(number, tmp_path): mp.spawn(spawned, (tmp_path / "store",), nprocs=SIZE)
""",
    ),
    Way(
        "case",
        "torch MultiProcessTestCase",
        PROCESSES,
        "slow",
        """
from torch.testing._internal.common_distributed import MultiProcessTestCase

class TestCase(MultiProcessTestCase):
    world_size = SIZE

    def setUp(self):
        super().setUp()
        self._spawn_processes()

def in_process(self):
    store = dist.FileStore(self.file_name, SIZE)
    dist.init_process_group("gloo", store=store, rank=self.rank, world_size=SIZE)
    body()
    dist.destroy_process_group()

for number in range({count}):
    setattr(TestCase, f"test_case_{{number}}", in_process)
""",
    ),
]


def modules(size: int, counts: dict[str, int]) -> dict[str, str]:
    """Return a test module for each way whose speed has a count; each test runs once more than that, to warm up."""
    head = HEAD.format(size=size)
    ways = [way for way in WAYS if way.speed in counts]
    return {f"test_{way.name}.py": head + way.source.format(count=counts[way.speed] + 1) for way in ways}
