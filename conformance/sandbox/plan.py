"""How a submission's ranks are kept apart, as a value that goes to the processes which carry it out."""

import errno
import os
import pwd
import random
import resource
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from conformance.sandbox.cgroups import PROCESSES
from conformance.sandbox.view import HOME, TMP, USER, View
from pytest_ddp.pool.launcher import ONE_THREAD

Isolation: TypeAlias = Literal["auto", "require", "none"]
ISOLATIONS: tuple[Isolation, ...] = ("auto", "require", "none")

GIB = 2**30
TMP_BYTES = 2 * GIB
_UNUSED = range(61184, 65520)  # user ids that systemd gives to services for their time; no person has one
_KEPT = (
    "PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "PYTHONHOME",
    "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONDONTWRITEBYTECODE",
)  # fmt: skip
_KEPT_FAMILIES = ("LC_", "MALLOC_")
FILE_BYTES = 2 * GIB
OPEN_FILES = 4096
_LIMITS = {"CORE": 0, "FSIZE": FILE_BYTES, "NOFILE": OPEN_FILES}
_ADDRESS_SPACE = 16 * GIB  # more than a rank has when it begins
NAMESPACES = "namespaces"  # the word for them in what is enforced
_CGROUPS = {"memory": "memory", "pids": "processes"}
_FOR_NOW = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}  # what a busy machine says, and not for ever
_NOTHING = View(())


@dataclass(frozen=True)
class Plan:
    """What is enforced on the ranks of one submission.

    Attributes:
        namespaces: whether they have PID, mount, IPC and network namespaces of their own.
        user_namespace: whether they have a user namespace of their own, too.
        uid: the user that they become; None if they stay the user of the judge.
        view: what they see of the file system, if they have a mount namespace.
        limits: resource limits, by the name that Python's `resource` module has for them, without "RLIMIT_".
        environment: their environment variables.
        cgroups: the folders of the cgroups that limit "memory" and "pids", as far as there are any.
    """

    namespaces: bool = False
    user_namespace: bool = False
    uid: int | None = None
    view: View = _NOTHING
    limits: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    cgroups: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what `json.dumps` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Return the plan that `to_json` made."""
        view = {name: tuple(map(_unlisted, values)) for name, values in plain["view"].items()}
        return cls(**{**plain, "view": View(**view)})

    @property
    def enforced(self) -> str:
        """Say what is enforced."""
        user = "own user" if self.uid is not None else "the user of the grader"
        if not (self.namespaces or self.uid is not None or self.limits):
            return "none; clean environment"
        names = ["user"] * self.user_namespace + ["PID", "mount", "IPC", "network"]
        listed = f"{', '.join(names[:-1])} and {names[-1]} {NAMESPACES}"
        spaces = f"; {listed}; no network; {TMP_BYTES // GIB} GiB /tmp" if self.namespaces else ""
        groups = " and ".join(_CGROUPS[name] for name in self.cgroups) or "none"
        return f"{user}{spaces}; clean environment; limits on {_words(self.limits)}; cgroup: {groups}"


def _unlisted(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _words(limits: Mapping[str, int]) -> str:
    words = {"AS": "memory", "FSIZE": "file size", "NPROC": "threads", "NOFILE": "open files"}
    return ", ".join(word for name, word in words.items() if name in limits)


def ladder(*, root: bool) -> list[Plan]:
    """Return what is tried, from the most to the least; the view, environment and so on are still to come."""
    uid = unused_uid() if root else None
    plans = [Plan(namespaces=True, user_namespace=True, uid=uid)]
    if root:
        plans += [Plan(namespaces=True, uid=uid), Plan(uid=uid)]
    return [*plans, Plan()]


def unused_uid() -> int:
    """Return the id of a user that nobody is."""
    taken = {one.pw_uid for one in pwd.getpwall()}
    return random.choice([uid for uid in _UNUSED if uid not in taken])  # noqa: S311  no secret


def clean_environment(outer: Mapping[str, str], home: str = HOME, tmp: str = TMP) -> dict[str, str]:
    """Return the variables that ranks have: a few of those outside, and ours."""
    kept = {name: value for name, value in outer.items() if name in _KEPT or name.startswith(_KEPT_FAMILIES)}
    return {**kept, **ONE_THREAD, "HOME": home, "TMPDIR": tmp, "USER": USER, "LOGNAME": USER}


def limits(plan: Plan) -> dict[str, int]:
    """Return the resource limits for a plan.

    The number of threads counts for a user: it would count what the user of the grader runs elsewhere. Only in a user
    namespace of Linux 5.14 and later are they counted apart.
    """
    found = {**_LIMITS, "AS": _address_space() + _ADDRESS_SPACE}
    if plan.uid is not None or (plan.user_namespace and _linux() >= (5, 14)):
        found["NPROC"] = PROCESSES
    return {name: value for name, value in found.items() if _may_set(name, value)}


def _may_set(name: str, value: int) -> bool:
    hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
    return hard == resource.RLIM_INFINITY or value <= hard


def _address_space() -> int:
    """Return the bytes of address space that this process has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


def _linux() -> tuple[int, ...]:
    return tuple(map(int, os.uname().release.split("-")[0].split(".")[:2]))


def completed(plan: Plan, view: View, environment: Mapping[str, str], cgroups: Mapping[str, str]) -> Plan:
    """Return a plan with all that it needs to be carried out."""
    return replace(plan, view=view, environment=environment, cgroups=cgroups, limits=limits(plan))


def refusal(error: OSError | ValueError) -> dict[str, Any]:
    """Return the answer to a request that the system refused, and whether it may allow the same later."""
    return {"refused": str(error), "for_now": getattr(error, "errno", None) in _FOR_NOW}
