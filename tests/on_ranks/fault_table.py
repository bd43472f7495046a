"""The fault table: how one rank of two misbehaves between two collectives, and what the report says of it.

One line a fault; `tests/process/pool/test_faults.py` and `tests/plugin/reporting/test_fault_table.py` hold the harness
to it, and `docs/faults.md` shows it to users.
"""

from dataclasses import dataclass

from pytest_ddp.outcomes.outcome import Deadlocked, Died, Outcome, Raised, Returned, TimedOut

HANG = 1.5  # seconds that a hang is given
AMPLE = 60.0


@dataclass(frozen=True)
class Fault:
    """What rank 1 does; what becomes of it; what is then said of it, or printed where the run passes all the same."""

    what: str
    target: str
    outcome: type[Outcome]
    words: str
    timeout: float = AMPLE


EXIT = "exited with code {} before it finished; last collective entered: all_reduce #1"
LOST = "exited with code 1 before it finished: the connection to the test run was closed"
KILLED = "was killed by {}; last collective entered: all_reduce #1"
PARTED = "deadlocked: it waits in all_reduce #2 float32[4], where rank 1 called barrier #2"
RUNNING = f"was still running at its deadline of {HANG:g} s; last collective entered: all_reduce #1"

FAULTS = [
    # it leaves
    Fault("`os._exit(0)`", "exits_with_0", Died, EXIT.format(0)),
    Fault("`os._exit(3)`", "exits_with_3", Died, EXIT.format(3)),
    Fault("`os._exit(255)`", "exits_with_255", Died, EXIT.format(255)),
    Fault("`sys.exit('bye')`", "calls_sys_exit", Raised, "raised SystemExit: bye"),
    # it dies
    Fault("SIGSEGV", "sigsegv", Died, KILLED.format("SIGSEGV")),
    Fault("SIGABRT", "sigabrt", Died, KILLED.format("SIGABRT")),
    Fault("SIGFPE", "sigfpe", Died, KILLED.format("SIGFPE")),
    Fault("SIGBUS", "sigbus", Died, KILLED.format("SIGBUS")),
    Fault("SIGILL", "sigill", Died, KILLED.format("SIGILL")),
    Fault("SIGKILL", "sigkill", Died, KILLED.format("SIGKILL")),
    Fault("SIGTERM", "sigterm", Died, KILLED.format("SIGTERM")),
    Fault("SIGINT", "sigint", Raised, "raised KeyboardInterrupt"),
    Fault("reads address 0", "reads_address_0", Died, KILLED.format("SIGSEGV")),
    Fault("reads address 0, faulthandler disabled", "segfaults_bare", Died, KILLED.format("SIGSEGV")),
    Fault("overflows the stack in C", "overflows_the_stack_in_c", Died, KILLED.format("SIGSEGV")),
    # it raises
    Fault("raises", "raises", Raised, "raised ValueError: had enough"),
    Fault("raises what cannot be pickled", "raises_a_lock", Raised, "raised raises_a_lock.<locals>.LockError: a lock"),
    Fault("raises with 50 MB of message", "raises_a_huge_message", Raised, "raised ValueError: start"),
    Fault("recurses without end", "recurses", Raised, "raised RecursionError: maximum recursion depth exceeded"),
    Fault("raises MemoryError", "raises_memory_error", Raised, "raised MemoryError: no more"),
    Fault("runs out of memory (`RLIMIT_AS`)", "runs_out_of_memory", Raised, "raised MemoryError"),
    Fault("runs out of descriptors and keeps them", "runs_out_of_files", Raised, "raised OSError: [Errno 24] Too many"),
    Fault("prints past its quota (`RLIMIT_FSIZE`)", "fills_its_quota", Raised, "raised OSError: [Errno 27] File too"),
    Fault("`init_process_group` again", "initialises_twice", Raised, "raised ValueError: trying to initialize the def"),
    Fault("leaves its session (`os.setsid`)", "sets_sid", Raised, "raised PermissionError: [Errno 1] Operation"),
    # it hangs
    Fault("hangs", "hangs", TimedOut, RUNNING, HANG),
    Fault("hangs in C with the GIL held", "hangs_in_c", TimedOut, RUNNING, HANG),
    Fault("hangs in another collective", "hangs_in_barrier", Deadlocked, PARTED),
    Fault("hangs, our dump signal ignored", "hangs_deaf", TimedOut, RUNNING, HANG),
    Fault("SIGSTOP", "sigstop", TimedOut, RUNNING.replace("running", "stopped by a signal"), HANG),
    # it breaks what it stands on
    Fault("closes every file (0 to 255)", "closes_all_files", Died, "rank 1 of 2 (gloo, cpu) "),
    Fault("closes our channel", "closes_our_channel", Died, LOST),
    Fault("closes our channel and hangs", "closes_and_hangs", Died, "closed the connection to the test run, ran on"),
    Fault("writes into our channel", "writes_into_our_channel", Raised, "raised ProtocolError: a rank announced"),
    Fault("closes stdout and stderr", "closes_stdout", Returned, "before"),
    Fault("replaces stdout by a closed file", "replaces_stdout", Returned, ""),
    Fault("deletes its folder", "deletes_its_folder", Returned, ""),
    Fault("changes folder, clears the environment", "changes_folder_and_environment", Returned, ""),
    Fault("replaces `json.dumps`, `threading.Thread`, ...", "replaces_modules", Returned, ""),
    Fault("lowers its limits", "lowers_its_limits", Returned, ""),
    Fault("`gc.freeze`, `gc.disable`", "stops_collecting_garbage", Returned, ""),
    Fault("`torch.set_num_threads(8)`", "sets_threads", Returned, ""),
    # it leaves something behind
    Fault("forks; the child comes back", "forks", Returned, "a process that the test forked has returned"),
    Fault("starts a process and exits", "leaves_a_child", Died, EXIT.format(3)),
    Fault("starts a process in a session of its own, exits", "leaves_a_session", Died, EXIT.format(3)),
    Fault("forks a process in a session of its own, exits", "leaves_a_fork", Died, EXIT.format(3)),
    Fault("a daemon thread that never ends", "leaves_a_daemon_thread", Returned, ""),
    Fault("a thread that never ends", "leaves_a_thread", Returned, ""),
    Fault("a thread raises", "raises_in_a_thread", Returned, "ValueError: had enough"),
    Fault("a thread calls `sys.exit`", "exits_in_a_thread", Returned, ""),
    Fault("raises in `__del__`", "raises_in_del", Returned, "ValueError: in __del__"),
    # it says too much
    Fault("prints 100 MB", "prints_100_megabytes", Returned, "bytes left out"),
    Fault("prints a line without end", "prints_a_line_without_end", Returned, "bytes left out"),
    Fault("prints bytes that are no text", "prints_no_text", Returned, r"raw \xff bytes"),
    Fault("returns 200 MB", "returns_much", Returned, ""),
]
