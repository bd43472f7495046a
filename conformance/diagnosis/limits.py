"""Says which limit of a sandbox an exception comes from, in neutral words."""

import re

from conformance.sandbox.cgroups import PROCESSES
from conformance.sandbox.plan import FILE_BYTES, GIB, OPEN_FILES, TMP_BYTES

_SAID = {  # by a pattern in "KIND: message"
    r"\[Errno 28\]|[Nn]o space left": f"The private /tmp and /dev/shm of a submission hold {TMP_BYTES // GIB} GiB each "
    "(--isolation). Write less, or remove files that are not needed any more.",
    r"\[Errno 101\]|Network is unreachable|^gaierror|name resolution|Name or service not known": "Submissions run "
    "without a network (--isolation): they can neither fetch nor send anything. Hand in the files that are needed.",
    r"\[Errno 30\]|Read-only file system": "While a submission is graded, its own folder is read-only (--isolation). "
    "Write to a folder of Python's `tempfile`, or to the path that is given.",
    r"\[Errno 27\]|File too large": f"A submission may write files of {FILE_BYTES // GIB} GiB at most (--isolation).",
    r"can't start new thread|\[Errno 11\] Resource temporarily unavailable": f"The ranks of a submission may have "
    f"{PROCESSES} processes and threads together (--isolation). Does it start them in a loop?",
    r"\[Errno 24\]|Too many open files": f"A rank may have {OPEN_FILES} open files (--isolation). Does it open "
    "files, or make process groups, in a loop?",
    r"^MemoryError|can't allocate memory|Cannot allocate memory": "The memory of a rank is limited (--isolation). Does "
    "it keep the tensors of every step, or make larger ones than it needs?",
}


def limit_met(kind: str, message: str) -> str:
    """Return which limit an exception comes from, and what to do; empty if it comes from none that is known."""
    said = f"{kind}: {message}"
    return next((words for pattern, words in _SAID.items() if re.search(pattern, said)), "")
