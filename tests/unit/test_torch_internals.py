"""torch's private names are still there, and do what `pytest_ddp.torch_internals` needs of them.

A check is named as the function of the adapter that it calls. Its docstring names what is private and what breaks
without it.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from inspect import getmembers
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode, is_in_torch_dispatch_mode
from torch.utils.flop_counter import FlopCounterMode

from pytest_ddp import torch_internals as internals

TIMEOUT = timedelta(seconds=77)


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    """The default group, of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=TIMEOUT)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def factory(monkeypatch):
    """The function by which torch makes groups; it is put back at the end."""
    monkeypatch.setattr(distributed_c10d, "_new_process_group_helper", distributed_c10d._new_process_group_helper)
    return internals.group_factory()


class Copy(internals.CoalescingGroup):
    """A group without backends of its own."""

    def __init__(self, store, rank, size):
        try:
            super().__init__(store, rank, size)
        except TypeError:  # torch before 2.12
            super().__init__(rank, size)
        self.events: list[str] = []

    def coalescing_begins(self):
        self.events.append("begins")

    def coalescing_ends(self, end):
        self.events.append("ends")
        return end()


# Process groups


def GROUP_SETTERS(group):  # noqa: N802  as in the adapter
    """ProcessGroup._set_group_name and others: the real group below an observed one has no name or no backend."""
    assert all(callable(getattr(group, name)) for name in internals.GROUP_SETTERS)


def OPTION_TYPES():  # noqa: N802  as in the adapter
    """torch._C._distributed_c10d: records lack the root, the reduction and whether an operation is asynchronous."""
    kinds = {dist.AllreduceOptions, dist.BroadcastOptions, dist.ReduceOptions, dist.ScatterOptions, dist.GatherOptions}
    assert kinds <= internals.OPTION_TYPES
    assert all(hasattr(kind(), "asyncOp") for kind in kinds)


def set_group_factory(group, factory):
    """distributed_c10d._new_process_group_helper: no collective is seen, neither by records nor after a hang."""
    calls = []

    def make(*args, **keywords):
        made = factory(*args, **keywords)
        calls.append((internals.ranks_of_new_group(args, keywords), internals.new_group_in(made)))
        return made

    internals.set_group_factory(make)
    other = dist.new_group(dist.get_process_group_ranks(group))
    assert calls == [((0,), other)]


group_factory = ranks_of_new_group = new_group_in = set_group_factory


def new_groups_of_class(group):
    """distributed_c10d.ProcessGroup: `observe=True` makes groups that are not observed."""
    with internals.new_groups_of_class(Copy):
        assert type(dist.new_group([0])) is Copy
    assert type(dist.new_group([0])) is type(group)


def all_groups(group):
    """distributed_c10d._world.pg_map: destroying a test's groups takes the next test's time."""
    other = dist.new_group([0])
    assert internals.all_groups() == [group, other]


def group_names(group):
    """distributed_c10d._world.pg_names: groups that a test did not destroy are not found."""
    other = dist.new_group([0])
    assert internals.group_names() == {group: group.group_name, other: other.group_name}


def default_group(group):
    """distributed_c10d._get_default_group: `assert_same_on_all_ranks` does not end if a rank is missing."""
    assert internals.default_group() is group


def default_store(group):  # noqa: ARG001  whose store it is
    """distributed_c10d._get_default_store: `assert_same_on_all_ranks` cannot ask the other ranks."""
    internals.default_store().set("key", "value")
    assert internals.default_store().get("key") == b"value"


def group_timeout(group):
    """ProcessGroup._device_types, Backend.options._timeout: a wait that torch itself ends is taken for a deadlock."""
    assert internals.device_of_group(group).type in {"cpu", "cuda"}  # gloo takes tensors on both
    assert internals.group_timeout(group.group_name) == TIMEOUT
    other = dist.new_group([0], timeout=2 * TIMEOUT)
    assert internals.group_timeout(other.group_name) == 2 * TIMEOUT


device_of_group = timeout_on = group_timeout


def share_backends(group):
    """ProcessGroup._register_backend and others: a group that is split from an observed one has no backend."""
    copy = Copy(group.get_group_store(), 0, 1)
    internals.share_backends(group, copy)
    assert (copy.group_name, copy.group_desc) == (group.group_name, group.group_desc)
    numbers = torch.ones(2)
    copy.allreduce([numbers], dist.AllreduceOptions()).wait()
    assert copy._get_backend(torch.device("cpu")) is group._get_backend(torch.device("cpu"))


def CoalescingGroup(group):  # noqa: N802  as in the adapter
    """ProcessGroup._start_coalescing: operations that are coalesced are recorded as complete at once."""
    copy = Copy(group.get_group_store(), 0, 1)
    internals.share_backends(group, copy)
    copy.real = SimpleNamespace(_start_coalescing=copy.events.append, _end_coalescing=copy.events.append)
    with dist._coalescing_manager(copy, torch.device("cpu")):
        assert copy.events == ["begins", torch.device("cpu")]
    assert copy.events[2:] == ["ends", torch.device("cpu")]


def WORK_GETTERS():  # noqa: N802  as in the adapter
    """Work._source_rank and others: observed handles cannot answer torch, for instance `recv` from any source."""
    assert all(callable(getattr(dist.Work, name)) for name in internals.WORK_GETTERS)


def world_of_each_thread(group):
    """multi_threaded_pg.ThreadLocalWorld, _set_thread_isolation_mode: simulated ranks share their process groups."""
    seen = []

    def join(number):
        seen.append(dist.is_initialized())
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        seen.append(dist.new_group([0], group_desc=str(number)).group_name)
        internals.forget_groups()
        seen.append(dist.is_initialized())

    with internals.world_of_each_thread():
        for number in (1, 2):
            thread = threading.Thread(target=join, args=(number,))
            thread.start()
            thread.join()
    assert seen == [False, seen[1], False] * 2
    assert dist.group.WORLD is group


forget_groups = world_of_each_thread


FAKES_IN_THREADS = """
import threading
from torch._subclasses.fake_tensor import FakeTensorMode
from pytest_ddp.torch_internals import keep_device_guard
keep_device_guard()
for _ in range(2):
    thread = threading.Thread(target=FakeTensorMode().__enter__)
    thread.start()
    thread.join()
"""


def keep_device_guard():
    """torch._C._ensureCUDADeviceGuardSet: DTensors of a second simulated world crash torch 2.11 where no GPU is."""
    done = subprocess.run([sys.executable, "-c", FAKES_IN_THREADS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def share_ranks(group):
    """distributed_c10d._world.pg_group_ranks: 4,096 simulated ranks need 0.6 GB more."""
    internals.share_ranks(group, ranks := {0: 0})
    assert distributed_c10d._world.pg_group_ranks[group] is ranks
    assert dist.get_process_group_ranks(group) == [0]


def register_python_backend(group):  # noqa: ARG001  no group of a thread
    """distributed_c10d._FR_SELF_RECORDING_BACKENDS: torch 2.15 attaches a recorder in C++ to simulated groups."""
    internals.register_python_backend("written_in_python", lambda options, _: Copy(options.store, 0, 1))
    dist.new_group([0], backend="written_in_python")
    assert "written_in_python" in getattr(distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", {"written_in_python"})


def prefix_stores(group):
    """distributed_c10d.PrefixStore: a simulated rank that waits for a key holds up all ranks."""
    made = []
    with internals.prefix_stores(lambda prefix, store: made.append(prefix) or dist.PrefixStore(prefix, store)):
        name = dist.new_group([0]).group_name
    assert f"{name}/" in made
    assert distributed_c10d.PrefixStore is dist.PrefixStore
    assert group.size() == 1


# Autograd and tensors


def autograd_in_calling_thread():
    """torch._C._set_multithreading_enabled: hooks of a simulated rank run in a thread that all ranks share."""
    before = torch._C._is_multithreading_enabled()
    with internals.autograd_in_calling_thread():
        assert not torch._C._is_multithreading_enabled()
    assert torch._C._is_multithreading_enabled() == before


def written_arguments():
    """OpOverload._schema: writes to tensors of a collective in flight are not found."""
    assert internals.written_arguments(torch.ops.aten.add_.Tensor) == {0, "self"}
    assert internals.written_arguments(torch.ops.aten.add.out) == {3, "out"}
    assert internals.written_arguments(torch.ops.aten.add.Tensor) == set()
    assert internals.written_arguments(torch.ops.aten.view.default) is None


class Counts(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def add_first_mode():
    """torch._C._push_on_torch_dispatch_stack and others: operations on tensors in flight are not seen."""
    first, other = Counts(), Counts()
    with other:
        internals.add_first_mode(first)
        internals.add_first_mode(first)
        torch.ones(1)
    torch.ones(1)
    internals.remove_mode(first)
    internals.remove_mode(first)
    torch.ones(1)
    assert (first.calls, other.calls) == (2, 1)


remove_mode = add_first_mode


def dispatch_flags_kept():
    """torch.utils._python_dispatch._is_in_torch_dispatch_mode: torch.compile does nothing after a simulation."""
    mode = Counts()
    with internals.dispatch_flags_kept():
        mode.__enter__()
        assert is_in_torch_dispatch_mode()
    assert not is_in_torch_dispatch_mode()
    mode.__exit__(None, None, None)
    assert not is_in_torch_dispatch_mode()


def no_python_dispatch():
    """torch._C._DisableTorchDispatch: a simulated rank's own operations are taken for the program's."""
    with FlopCounterMode(display=False) as counter, internals.no_python_dispatch():
        torch.ones(2, 2).mm(torch.ones(2, 2))
    assert counter.get_total_flops() == 0


def Future(group, monkeypatch):  # noqa: N802  as in the adapter
    """torch._C.Future: waits for the future of an operation are not recorded, and a rank in one seems to compute."""
    waited = []
    for name in ("wait", "then", "done"):
        original = getattr(internals.Future, name)
        monkeypatch.setattr(internals.Future, name, lambda *args, f=original, n=name: waited.append(n) or f(*args))
    future = dist.all_reduce(torch.ones(1), group=group, async_op=True).get_future()
    future.then(lambda done: done.value()).wait()
    assert isinstance(future, internals.Future)
    assert future.done()
    assert waited == ["then", "wait", "done"]


def set_engine():
    """torch.autograd.graph._engine_run_backward: backward passes are not recorded."""
    original, calls = internals.engine(), []
    number = torch.ones(1, requires_grad=True)
    internals.set_engine(
        lambda outputs, *args, **keywords: calls.append(keywords) or original(outputs, *args, **keywords)
    )
    try:
        (2 * number).backward()
        torch.autograd.backward(2 * number)
        torch.autograd.grad(2 * number, number)
    finally:
        internals.set_engine(original)
    (2 * number).backward()
    assert [keywords["accumulate_grad"] for keywords in calls] == [True, True, False]


engine = set_engine


def runs_backward():
    """torch._C._current_graph_task_id: waits of DDP's reducer are not recorded, and a rank in one seems to compute."""
    seen = []
    number = torch.ones(1, requires_grad=True)
    number.register_hook(lambda _: seen.append(internals.runs_backward()))
    (2 * number).backward()
    assert (seen, internals.runs_backward()) == ([True], False)


def call_after_backward():
    """Variable._execution_engine.queue_callback: waits of DDP's reducer are not recorded."""
    seen = []
    number = torch.ones(1, requires_grad=True)
    number.register_hook(lambda _: internals.call_after_backward(lambda: seen.append(number.grad.item())))
    (2 * number).backward()
    assert seen == [2.0]


def register_first_hook():
    """Tensor._backward_hooks: gradients are recorded as ready after the collectives that hooks launch with them."""
    called: list[str] = []
    number = torch.ones(1, requires_grad=True)
    assert not internals.has_hooks(number)
    for name in ("one", "two"):
        number.register_hook(lambda _, name=name: called.append(name))
    assert internals.has_hooks(number)
    handle = internals.register_first_hook(number, lambda _: called.append("first"))
    (2 * number).backward()
    handle.remove()
    (2 * number).backward()
    assert called == ["first", "one", "two", "one", "two"]


has_hooks = register_first_hook


def sparse_values():
    """Tensor._values: a gate cannot hold back the results of an operation on sparse tensors."""
    with torch.sparse.check_sparse_tensor_invariants():  # torch warns if nothing is said
        sparse = torch.sparse_coo_tensor([[1, 1]], [1.0, 2.0], (3,))
    internals.sparse_values(sparse).fill_(4.0)
    assert sparse.to_dense().tolist() == [0, 8, 0]


def clear_cublas_workspaces():
    """torch._C._cuda_clearCublasWorkspaces: a test that multiplies matrices on a GPU seems to leak memory."""
    if torch.cuda.is_available():
        internals.clear_cublas_workspaces()
    elif torch.version.cuda:
        assert callable(torch._C._cuda_clearCublasWorkspaces)


# The compiler

COMPILES = """
import os, sys, threading
variables = set(os.environb)
from pytest_ddp import torch_internals as internals
internals.import_compiler()
modules = set(sys.modules)
import torch
torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
later = [name for name in sys.modules.keys() - modules if name.startswith("torch._dynamo")]
assert not later, f"imported with the first optimizer: {later}"

import torch._inductor.config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.runtime.cache_dir_utils import cache_dir
threads = set(threading.enumerate())
torch._inductor.config.compile_threads = 2
cache_dir()
AsyncCompile.pool().submit(int).result()
processes = AsyncCompile.process_pool()  # tests/plugin/rank_session/test_compilers.py compiles with it
new = set(os.environb) - variables
assert new and new <= set(internals.COMPILER_VARIABLES), new
started = set(threading.enumerate()) - threads
assert started and started <= internals.compiler_threads(), (started, internals.compiler_threads())
assert processes.process.pid in internals.compiler_processes()
"""


def import_compiler():
    """torch._dynamo, torch._inductor.async_compile: threads and processes of the compiler are taken for leaks."""
    environment = {name: value for name, value in os.environb.items() if name not in internals.COMPILER_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", COMPILES], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


COMPILER_VARIABLES = compiler_threads = compiler_processes = import_compiler


def premul_factor():
    """torch.distributed._make_nccl_premul_sum, ReduceOp.__getstate__: simulated ranks cannot compute PREMUL_SUM."""
    assert internals.premul_factor(dist._make_nccl_premul_sum(2.0)) == 2.0
    assert internals.premul_factor(dist.ReduceOp(dist.ReduceOp.SUM)) is None
    assert internals.premul_factor(dist.ReduceOp.SUM) is None


def print_options():
    """torch._tensor_str.PRINT_OPTS: print options that a test leaves are not restored."""
    before = dict(vars(internals.print_options()))
    torch.set_printoptions(precision=before["precision"] + 1)
    vars(internals.print_options()).update(before)
    assert vars(internals.print_options()) == before


DYNAMO = """
import sys
import threading
from pytest_ddp import torch_internals as internals

assert internals.dynamo_settings() is None
import torch._dynamo.config as config
digest = internals.dynamo_settings()
config.suppress_errors = not config.suppress_errors
assert internals.dynamo_settings() != digest
assert internals.restore_dynamo_settings(digest) == ["suppress_errors"]
assert internals.dynamo_settings() == digest

config.ignore_logging_functions = {0, 8}  # sets list numbers that collide in the order of their insertion
digest, digest_of_torch = internals.dynamo_settings(), config.get_hash()
config.ignore_logging_functions = {8, 0}
assert config.get_hash() != digest_of_torch
assert internals.dynamo_settings() == digest
"""


def dynamo_settings():
    """torch._dynamo.config.get_hash, get_config_copy, load_config: what a test sets there is not restored."""
    done = subprocess.run([sys.executable, "-c", DYNAMO], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


restore_dynamo_settings = dynamo_settings


def _own(name, member):
    return getattr(member, "__module__", "") == internals.__name__ or name.isupper()


NAMES = [name for name, member in getmembers(internals) if _own(name, member) and not name.startswith("_")]
CHECKS = {
    globals()[name].__name__: globals()[name] for name in [*NAMES, "Future", "no_python_dispatch"] if name in globals()
}


def test_every_name_of_the_adapter_has_a_check():
    assert [name for name in NAMES if name not in globals()] == []


@pytest.mark.parametrize("name", CHECKS)
def test_torch_still_has(name, still_works):
    still_works("torch", internals, CHECKS[name])
