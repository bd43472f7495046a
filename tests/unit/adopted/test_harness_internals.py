"""The private names of torch's test harnesses are still there, and do what `adopted.harness_internals` needs of them.

A check is named as the function of the adapter that it calls. Its docstring names what is private and what breaks
without it.
"""

from inspect import getmembers, isfunction

import pytest
from torch.testing._internal import common_distributed as harnesses

from pytest_ddp.adopted import harness_internals as internals


@pytest.fixture(autouse=True)
def harnesses_are_put_back(monkeypatch):
    """The checks replace methods of torch's classes."""
    for name in internals.REPLACED:
        harness = getattr(harnesses, name)
        for method, function in list(vars(harness).items()):
            if callable(function) or isinstance(function, classmethod):
                monkeypatch.setattr(harness, method, function)


class Result:
    """What unittest reports of a test."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def __getattr__(self, name):
        return lambda *args: self.errors.append(str(args[1])) if name in {"addError", "addFailure"} else None


def run(test):
    result = Result()
    test.run(result)
    assert result.errors == []


def harness_of():
    """common_distributed.MultiProcessTestCase and others: no class of torch's is adopted."""
    for name, methods in internals.REPLACED.items():
        harness = getattr(harnesses, name)
        assert internals.harness_of(type("Derived", (harness,), {})) is harness
        assert all(method in vars(harness) for method in (*methods, internals.DECIDES[name]))
    assert internals.harness_of(harnesses.TestCase) is None


def overridden():
    """MultiProcessTestCase.join_or_run and others: a class that starts its processes itself passes without a test."""
    for name, methods in internals.REPLACED.items():
        harness = getattr(harnesses, name)
        between = type("Between", (harness,), {methods[0]: None})
        assert internals.overridden(type("Derived", (between,), {}), harness, *methods) == [methods[0]]
        assert internals.overridden(type("Derived", (harness,), {}), harness, *methods) == []


def reason_of_exit_code():
    """common_distributed.TEST_SKIPS: what torch's decorators skip fails with SystemExit."""
    assert internals.reason_of_exit_code(73) == "Skipped due to small world size."
    assert internals.reason_of_exit_code(1) is None


def worker_count():
    """MultiProcContinuousTest.world_size: classes that set none are refused."""

    class Two(harnesses.MultiProcContinuousTest):
        world_size = 2

    class Devices(harnesses.MultiProcContinuousTest):
        device_type = property(lambda _: "cpu")

    class Property(Devices):
        world_size = property(lambda _: 3)

    assert [internals.worker_count(cls) for cls in (Two, Devices, Property)] == [2, 1, 3]


def worker_device():
    """MultiProcContinuousTest.device_type: classes for GPUs are planned on CPU."""

    class Method(harnesses.MultiProcContinuousTest):
        @classmethod
        def device_type(cls):
            return "cuda"

    class Attribute(Method):
        device_type = "hpu"

    class Property(Method):
        device_type = property(lambda _: "xpu")

    assert [internals.worker_device(cls) for cls in (Method, Attribute, Property)] == ["cuda", "hpu", "xpu"]
    assert internals.worker_device(type("Inherits", (Attribute,), {})) == "hpu"


def replace_processes():
    """MultiProcessTestCase._start_processes, _join_processes, _run: its tests start processes on ranks."""
    called: list[object] = []

    class Case(harnesses.MultiProcessTestCase):
        def setUp(self):
            super().setUp()
            self._spawn_processes()
            self._start_processes(None)

        def test_it(self):
            called.append((self.rank, self.file_name))

    def join(test, method):
        called.append(method == test.test_it.__wrapped__)
        assert internals.method_name(test) == "test_it"
        internals.run_process(test, 1, "file")

    internals.replace_processes(harnesses.MultiProcessTestCase, lambda test: called.append(test.rank), join)
    run(Case("test_it"))
    assert called == [-1, -1, True, (1, "file")]


def replace_threads():
    """MultiThreadedTestCase._spawn_threads, _join_threads, _run: its tests start threads on ranks."""
    called: list[object] = []

    class Case(harnesses.MultiThreadedTestCase):
        def setUp(self):
            super().setUp()
            self._spawn_threads()

        def perThreadSetUp(self):  # noqa: N802  torch's name
            called.append("set up")

        def perThreadTearDown(self):  # noqa: N802  likewise
            called.append("torn down")

        def test_it(self):
            called.append(self.rank)

    internals.replace_threads(harnesses.MultiThreadedTestCase, lambda test: internals.run_thread(test, 1, 2))
    run(Case("test_it"))
    assert called == ["set up", 1, "torn down"]


def replace_workers():
    """MultiProcContinuousTest._spawn_processes, _init_pg and others: its tests start processes on ranks."""
    called: list[object] = []

    class Case(harnesses.MultiProcContinuousTest):
        world_size = 2

        @classmethod
        def _init_pg(cls, *args):
            called.append(args)

        def test_it(self):
            called.append((self.rank, self.world_size))

    internals.replace_workers(
        harnesses.MultiProcContinuousTest, lambda test: internals.run_worker(test, 1, 2, "rendezvous")
    )
    Case.setUpClass()
    run(Case("test_it"))
    Case.tearDownClass()
    assert called == [(1, 2, "rendezvous"), (1, 2)]


run_process = method_name = replace_processes
run_thread = replace_threads
run_worker = replace_workers

NAMES = [
    name
    for name, member in getmembers(internals, isfunction)
    if member.__module__ == internals.__name__ and not name.startswith("_")
]
CHECKS = {globals()[name].__name__: globals()[name] for name in NAMES if name in globals()}


def test_every_name_of_the_adapter_has_a_check():
    assert [name for name in NAMES if name not in globals()] == []


@pytest.mark.parametrize("name", CHECKS)
def test_torch_still_has(name, still_works):
    still_works("torch", internals, CHECKS[name])
