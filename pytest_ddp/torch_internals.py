"""The private names of torch that this package uses, and no others. Only code on ranks imports this module.

A new release of torch that changes one of them breaks this module and no other. All are as in torch 2.11 to 2.15.
tests/unit/test_torch_internals.py checks each, and says which feature needs it.
"""

import copy
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable, graph
from torch.distributed import ProcessGroup, Store, distributed_c10d
from torch.distributed.distributed_c10d import GroupName
from torch.utils import _python_dispatch

_C: Any = torch._C

# Process groups

WORK_GETTERS = ("_source_rank", "_get_duration", "_get_op_type")
GROUP_SETTERS = ("_set_default_backend", "_register_backend", "_set_group_name", "_set_group_desc")
OPTION_TYPES = frozenset(
    kind for name, kind in vars(_C._distributed_c10d).items() if name.endswith("Options") and isinstance(kind, type)
)


def group_factory() -> Callable[..., Any]:
    """Return the function by which `init_process_group` and `new_group` make each group."""
    factory: Callable[..., Any] = distributed_c10d._new_process_group_helper
    return factory


def set_group_factory(factory: Callable[..., Any]) -> None:
    """Let torch make its groups with another function, of the same arguments."""
    distributed_c10d._new_process_group_helper = factory


def ranks_of_new_group(args: Sequence[Any], keywords: dict[str, Any]) -> tuple[int, ...]:
    """Return the global ranks of the group that the factory makes of these arguments."""
    return tuple(keywords["global_ranks_in_group"] if "global_ranks_in_group" in keywords else args[2])


def new_group_in(made: Any) -> ProcessGroup | None:
    """Return the group in what the factory returned; None on a rank that is not in the group."""
    group = made[0] if isinstance(made, tuple) else made
    return group if isinstance(group, ProcessGroup) else None


@contextmanager
def new_groups_of_class(kind: type[ProcessGroup]) -> Iterator[None]:
    """Let the factory make groups of this class."""
    distributed_c10d.ProcessGroup = kind  # type: ignore[misc]
    try:
        yield
    finally:
        distributed_c10d.ProcessGroup = ProcessGroup  # type: ignore[misc]


def all_groups() -> list[ProcessGroup]:
    """Return every group of this process."""
    return list(distributed_c10d._world.pg_map)


def group_names() -> Mapping[ProcessGroup, str]:
    """Return the name of every group of this process."""
    return distributed_c10d._world.pg_names


def default_group() -> ProcessGroup:
    """Return the default group; raise ValueError if there is none."""
    return distributed_c10d._get_default_group()


def default_store() -> Store:
    """Return the store of the default group."""
    return distributed_c10d._get_default_store()


def group_timeout(name: str) -> timedelta:
    """Return after how long an operation of a group fails; 0 if the group's backend does not say."""
    group = distributed_c10d._resolve_process_group(GroupName(name))
    return timeout_on(group, device_of_group(group))


def device_of_group(group: ProcessGroup) -> torch.device:
    """Return a device whose tensors a group can send."""
    return group._device_types[0]


def timeout_on(group: ProcessGroup, device: torch.device) -> timedelta:
    """Return after how long an operation of a group on a device fails; 0 if the backend does not say."""
    try:
        timeout: timedelta = group._get_backend(device).options._timeout
    except AttributeError:
        return timedelta(0)
    return timeout


def share_backends(real: ProcessGroup, group: ProcessGroup) -> None:
    """Give a group the backends, the name and the description of another one, and call no method of a subclass."""
    for device in real._device_types:
        backend = real._get_backend(device)
        kind = dist.Backend.backend_type_map.get(backend.name(), ProcessGroup.BackendType.CUSTOM)
        ProcessGroup._set_default_backend(group, kind)
        ProcessGroup._register_backend(group, device, kind, backend)
    ProcessGroup._set_group_name(group, real.group_name)
    ProcessGroup._set_group_desc(group, real.group_desc)


class CoalescingGroup(ProcessGroup):
    """A group that delegates coalescing to `real`, and lets a subclass see where it begins and ends."""

    real: ProcessGroup

    def coalescing_begins(self) -> None:
        """Note that the operations until `coalescing_ends` are coalesced."""

    def coalescing_ends(self, end: Callable[[], Any]) -> Any:
        """Return the handle of the coalesced operations; `end` returns that of the real group."""
        return end()

    def _start_coalescing(self, device: torch.device) -> None:
        self.coalescing_begins()
        self.real._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        return self.coalescing_ends(partial(self.real._end_coalescing, device))


def register_python_backend(name: str, create: Callable[..., Any]) -> None:
    """Register a backend for CPU whose groups are written in Python.

    torch 2.14 and later would attach a flight recorder to its groups, which works for groups in C++ only.
    """
    dist.Backend.register_backend(name, create, extended_api=True, devices=["cpu"])
    recorded = getattr(distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", None)
    if recorded is not None:
        vars(distributed_c10d)["_FR_SELF_RECORDING_BACKENDS"] = frozenset(recorded) | {name}


@contextmanager
def prefix_stores(make: Callable[[str, Store], Store]) -> Iterator[None]:
    """Let torch make the stores of groups, which share one store, with another function."""
    distributed_c10d.PrefixStore = make  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        distributed_c10d.PrefixStore = dist.PrefixStore  # type: ignore[misc]


@contextmanager
def world_of_each_thread() -> Iterator[None]:
    """Give each thread process groups of its own, in Python and in C++; restore those of the process at the end."""
    threaded = importlib.import_module("torch.testing._internal.distributed.multi_threaded_pg")
    world = distributed_c10d._world
    distributed_c10d._world = threaded.ThreadLocalWorld()
    if not hasattr(distributed_c10d._world, "comms"):  # torch 2.11: it is asked for when groups are destroyed
        distributed_c10d._world.comms = []
    _C._distributed_c10d._set_thread_isolation_mode(True)
    try:
        yield
    finally:
        _C._distributed_c10d._set_thread_isolation_mode(False)
        distributed_c10d._world = world


def keep_device_guard() -> None:
    """Let this thread make what fake tensors use instead of GPUs where there are none.

    The thread that needs it first makes it. In torch 2.11 it is gone when that thread ends, and the next use crashes.
    """
    _C._ensureCUDADeviceGuardSet()


def share_ranks(group: ProcessGroup, ranks: dict[int, int]) -> None:
    """Let the world of this thread use a dict for the ranks of a group that other threads have, too: it is large."""
    distributed_c10d._world.pg_group_ranks[group] = ranks


def forget_groups() -> None:
    """Destroy the process groups of this thread; a later thread may get its number, and its groups in C++."""
    for name in distributed_c10d._world.pg_names.values():
        distributed_c10d._unregister_process_group(name)
    if dist.is_initialized():
        dist.destroy_process_group()


# Autograd and tensors

no_python_dispatch: Callable[[], AbstractContextManager[None]] = _C._DisableTorchDispatch


def add_first_mode(mode: Any) -> None:
    """Add a TorchDispatchMode below all others of this thread, unless it is there; they may come and go above it."""
    if not _has_mode(mode):
        others = [_C._pop_torch_dispatch_stack(None) for _ in range(_C._len_torch_dispatch_stack())]
        for one in (mode, *reversed(others)):
            _C._push_on_torch_dispatch_stack(one)


def remove_mode(mode: Any) -> None:
    """Remove a TorchDispatchMode from those of this thread, if it is there."""
    if _has_mode(mode):
        modes = [_C._pop_torch_dispatch_stack(None) for _ in range(_C._len_torch_dispatch_stack())]
        for one in reversed(modes):
            if one is not mode:
                _C._push_on_torch_dispatch_stack(one)


def _has_mode(mode: Any) -> bool:
    return any(_C._get_dispatch_stack_at(index) is mode for index in range(_C._len_torch_dispatch_stack()))


@contextmanager
def dispatch_flags_kept() -> Iterator[None]:
    """Restore what torch notes of modes in this process; it is wrong after modes of different threads overlap."""
    names = [name for name in vars(_python_dispatch) if name.startswith("_is_in_")]
    before = {name: getattr(_python_dispatch, name) for name in names}
    try:
        yield
    finally:
        vars(_python_dispatch).update(before)


def written_arguments(operation: Any) -> frozenset[int | str] | None:
    """Return the positions and names of the arguments that an operation on tensors writes; None if it makes a view."""
    aliases = [
        (position, one) for position, one in enumerate(operation._schema.arguments) if one.alias_info is not None
    ]
    written = [(position, one.name) for position, one in aliases if one.alias_info.is_write]
    return None if aliases and not written else frozenset(name for both in written for name in both)


@contextmanager
def autograd_in_calling_thread() -> Iterator[None]:
    """Let backward run in the thread that calls it; this setting belongs to the thread."""
    before = torch._C._is_multithreading_enabled()
    torch._C._set_multithreading_enabled(False)
    try:
        yield
    finally:
        torch._C._set_multithreading_enabled(before)


def premul_factor(reduce_op: Any) -> Any:
    """Return the factor of a PREMUL_SUM, which its pickled state has; None for any other reduction."""
    state: Any = reduce_op.__getstate__()
    return state[1] if isinstance(state, tuple) else None  # an integer for `ReduceOp.SUM` itself


Future: Any = _C.Future  # the base class of torch.futures.Future; C++ makes instances of it
_NO_GRAPH_TASK = -1


def engine() -> Callable[..., Any]:
    """Return the function that runs each backward pass: `Tensor.backward`, `autograd.backward` and `autograd.grad`."""
    run: Callable[..., Any] = graph._engine_run_backward
    return run


def set_engine(run: Callable[..., Any]) -> None:
    """Let another function, of the same arguments, run each backward pass."""
    for module in (graph, torch.autograd):  # the second has it by name
        vars(module)["_engine_run_backward"] = run


def runs_backward() -> bool:
    """Whether this thread is in a backward pass."""
    return bool(_C._current_graph_task_id() != _NO_GRAPH_TASK)


def call_after_backward(function: Callable[[], None]) -> None:
    """Call a function at the end of the backward pass that this thread is in."""
    Variable._execution_engine.queue_callback(function)


def has_hooks(tensor: torch.Tensor) -> bool:
    """Whether hooks are registered for the gradient of a tensor."""
    return bool(tensor._backward_hooks)


def register_first_hook(tensor: Any, hook: Callable[[torch.Tensor], Any]) -> Any:
    """Register a hook that runs before the hooks that a tensor has; return its handle."""
    others = dict(tensor._backward_hooks)
    tensor._backward_hooks.clear()  # C++ runs hooks in the order of this dict
    handle = tensor.register_hook(hook)
    tensor._backward_hooks.update(others)
    return handle


def sparse_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a sparse tensor, which need not be coalesced."""
    return tensor._values()


def clear_cublas_workspaces() -> None:
    """Free the memory that cuBLAS keeps on the device; it takes it again when it needs it."""
    _C._cuda_clearCublasWorkspaces()


# The compiler

COMPILER_VARIABLES = (
    b"TORCHINDUCTOR_CACHE_DIR",
    b"_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
    b"TRITON_CACHE_DIR",
    b"TRITON_LIBDEVICE_PATH",
    b"TRITON_PTXAS_PATH",
)  # of the environment, set by the first compilation


def import_compiler() -> None:
    """Import what torch.optim imports when the first optimizer is made, which takes seconds."""
    importlib.import_module("torch._dynamo")


def compiler_threads() -> set[Thread]:
    """Return the threads that compile, and those that watch processes that compile; they stay for good."""
    found: set[Thread] = set()
    for pool in _compiler_pools():
        timer = getattr(pool, "timer", None)
        own = [getattr(pool, "read_thread", None), getattr(pool, "health_thread", None)]
        own += [getattr(timer, "background_thread", None), getattr(pool, "_executor_manager_thread", None)]
        found.update(thread for thread in own if isinstance(thread, Thread))
        if isinstance(pool, ThreadPoolExecutor):
            found |= pool._threads
    return found


def compiler_processes() -> set[int]:
    """Return the processes that compile, and those that start them; they stay for good."""
    found: set[int] = set()
    for pool in _compiler_pools():
        if process := getattr(pool, "process", None):
            found.add(process.pid)
        found.update(getattr(pool, "_processes", None) or ())
    return found


def _compiler_pools() -> Iterator[Any]:
    compiling = sys.modules.get("torch._inductor.async_compile")
    if compiling is None:
        return
    yield from getattr(compiling, "_pool_set", ())
    pool = compiling.AsyncCompile.pool
    if pool.cache_info().currsize:
        yield pool()


# Settings


def print_options() -> Any:
    """Return the options that `torch.set_printoptions` sets, as one mutable object."""
    return torch._tensor_str.PRINT_OPTS


_dynamo_copies: dict[bytes, dict[str, Any]] = {}
_dynamo_digests: dict[bytes, bytes] = {}


def dynamo_settings() -> bytes | None:
    """Return a digest of torch._dynamo.config; None if it has not been imported. Cheap where nothing has changed.

    Equal settings have one digest here. For torch they may have several: its digest is that of the text of all
    settings, and two equal sets may list their members in different orders.
    """
    config: Any = sys.modules.get("torch._dynamo.config")
    if config is None:
        return None
    digest: bytes = config.get_hash()
    if digest not in _dynamo_digests:
        settings = config.get_config_copy()
        equal = (known for known, settings_then in _dynamo_copies.items() if settings_then == settings)
        _dynamo_digests[digest] = next(equal, digest)
        _dynamo_copies.setdefault(_dynamo_digests[digest], settings)
    return _dynamo_digests[digest]


def restore_dynamo_settings(digest: bytes) -> list[str]:
    """Restore the settings for which `dynamo_settings` returned this digest; return the names of those that differ."""
    config: Any = sys.modules["torch._dynamo.config"]
    before, now = _dynamo_copies[digest], config.get_config_copy()
    with warnings.catch_warnings(action="ignore"):  # some settings are deprecated
        config.load_config(copy.deepcopy(before))
    return [name for name in before if before[name] != now.get(name)]
