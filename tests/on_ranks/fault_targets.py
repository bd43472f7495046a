"""Faults: what one of two ranks does between two collectives (see `fault_table`)."""

import atexit
import ctypes
import faulthandler
import gc
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import rank_targets
import torch
import torch.distributed as dist
from hanging import HANGING

from pytest_ddp.protocol.messages import Raising
from pytest_ddp.rank.worker import Rank

_kept: list[object] = []
is_initialized = dist.is_initialized


def misbehave(name: bytes) -> bytes:
    """Be called on every rank: rank 1 does what `name` says."""
    rank_targets.all_reduce(b"")
    done = globals()[name.decode()]() if dist.get_rank() == 1 else b""
    if is_initialized():
        rank_targets.all_reduce(b"")
    return done or b""


def exits_with_0() -> None:
    os._exit(0)


def exits_with_3() -> None:
    os._exit(3)


def exits_with_255() -> None:
    os._exit(255)


def calls_sys_exit() -> None:
    sys.exit("bye")


def sends_itself(name: str) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), signal.Signals[name])


sigsegv, sigabrt, sigfpe = sends_itself("SIGSEGV"), sends_itself("SIGABRT"), sends_itself("SIGFPE")
sigbus, sigkill, sigterm = sends_itself("SIGBUS"), sends_itself("SIGKILL"), sends_itself("SIGTERM")
sigill, sigint, sigstop = sends_itself("SIGILL"), sends_itself("SIGINT"), sends_itself("SIGSTOP")


def reads_address_0() -> None:
    ctypes.string_at(0)


def overflows_the_stack_in_c() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (4096, most))  # it cannot grow: Python's recursion limit comes too late
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    sort = ctypes.CDLL(None).qsort

    def deeper(*_: object) -> int:
        sort((ctypes.c_int * 2)(), 2, 4, callback)
        return 0

    callback = compare(deeper)
    deeper()


def raises() -> None:
    raise ValueError("had enough")


def raises_a_lock() -> None:
    class LockError(Exception):
        def __init__(self, lock: object, text: str) -> None:
            super().__init__(lock, text)

        def __str__(self) -> str:
            return "a lock"

    raise LockError(threading.Lock(), "x")


def raises_a_huge_message() -> None:
    raise ValueError("start" + 50_000_000 * "x" + "end")


def recurses() -> None:
    recurses()


def raises_memory_error() -> None:
    raise MemoryError("no more")


def runs_out_of_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**24, resource.RLIM_INFINITY))
    _kept.append(bytearray(2**28))


def runs_out_of_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    while True:
        _kept.append(open(os.devnull))  # noqa: SIM115, PTH123


def initialises_twice() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def destroys_the_group() -> None:
    dist.destroy_process_group()


def hangs() -> None:
    print(HANGING, flush=True)
    threading.Event().wait()


def hangs_in_c() -> None:
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    print(HANGING, flush=True)
    library.pthread_mutex_lock(mutex)  # PyDLL keeps the GIL: no Python code runs in this process any more


def hangs_in_barrier() -> None:
    dist.barrier()  # rank 0 is in an all_reduce


def hangs_deaf() -> None:
    signal.signal(signal.SIGRTMIN, signal.SIG_IGN)
    hangs()


def segfaults_bare() -> None:
    faulthandler.disable()
    reads_address_0()


def forks() -> bytes:
    pid = os.fork()
    if pid == 0:
        globals()["is_initialized"] = lambda: False
        return b"child"
    os.waitpid(pid, 0)
    return b"parent"


def leaves_a_child() -> None:
    subprocess.Popen(["/bin/sleep", "1000"])
    os._exit(3)


def leaves_a_session() -> None:
    subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True, close_fds=False)
    os._exit(3)


def leaves_a_fork() -> None:
    if os.fork() == 0:
        os.setsid()
        hangs()
    os._exit(3)


def leaves_a_daemon_thread() -> None:
    threading.Thread(target=hangs, daemon=True).start()


def leaves_a_thread() -> None:
    threading.Thread(target=hangs).start()


def raises_in_a_thread() -> None:
    thread = threading.Thread(target=raises)
    thread.start()
    thread.join()


def exits_in_a_thread() -> None:
    thread = threading.Thread(target=sys.exit)
    thread.start()
    thread.join()


def closes_all_files() -> None:
    os.closerange(0, 256)


def closes_our_channel() -> None:
    os.close(Rank.current._inbox.channel.fileno())


def closes_and_hangs() -> None:
    os.close(Rank.current._inbox.channel.fileno())
    hangs()


def writes_into_our_channel() -> None:
    os.write(Rank.current._inbox.channel.fileno(), b"x" * 100)
    hangs()


def talks_for_ever() -> None:
    while True:
        Rank.current.send(Raising())


def closes_stdout() -> None:
    print("before")
    sys.stdout.close()
    sys.stderr.close()
    os.close(1)
    os.close(2)


def replaces_stdout() -> None:
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
    sys.stdout.close()


def deletes_its_folder() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    Path(folder).rmdir()


def changes_folder_and_environment() -> None:
    os.chdir("/")
    os.environ.clear()


def fills_its_quota() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, resource.RLIM_INFINITY))
    for line in range(20_000):
        print("line", line)


def fills_the_disk() -> None:
    while True:
        print(1000 * "x")


def lowers_its_limits() -> None:
    for limit, value in ((resource.RLIMIT_FSIZE, 1), (resource.RLIMIT_NOFILE, 256)):
        resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))


def prints_100_megabytes() -> None:
    for _ in range(100):
        print(9999 * ("x" * 99 + "\n"))


def prints_a_line_without_end() -> None:
    for _ in range(1000):
        sys.stdout.write("x" * 100_000)


def prints_no_text() -> None:
    os.write(1, b"raw \xff bytes\n")


def raises_in_del() -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("in __del__")

    Broken()


def raises_at_exit() -> None:
    atexit.register(raises)


def is_no_host(_: bytes) -> None:
    raise RuntimeError("." * 500_000 + "for this reason")


def hangs_at_exit() -> None:
    atexit.register(threading.Event().wait)


def replaces_modules() -> None:
    for module, names in {
        time: ("sleep", "perf_counter", "monotonic", "time"),
        json: ("dumps", "loads"),
        select: ("select", "poll"),
        socket: ("socket", "create_connection"),
        threading: ("Thread", "Event", "Lock"),
        os: ("getpid", "write", "read"),
        dist: ("is_initialized", "destroy_process_group"),
    }.items():
        for name in names:
            setattr(module, name, None)


def sets_sid() -> None:
    os.setsid()


def stops_collecting_garbage() -> None:
    gc.freeze()
    gc.disable()


def sets_threads() -> None:
    torch.set_num_threads(8)


def returns_much() -> bytes:
    return bytes(200_000_000)
