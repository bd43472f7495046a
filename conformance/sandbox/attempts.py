"""Makes the sandbox that this machine allows: tries from the most to the least, and remembers what was refused."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from conformance.sandbox.cgroups import cgroups
from conformance.sandbox.folders import temporary_folder
from conformance.sandbox.plan import Isolation, Plan, clean_environment, completed, ladder
from conformance.sandbox.sandbox import Sandbox, SandboxLauncher
from conformance.sandbox.view import view_of
from conformance.sandbox.zygotes import BusyError, RefusedError, Zygote
from pytest_ddp.errors import LaunchError, UsageError

_REQUIRED = (
    "--isolation=require: this machine does not let the grader make a sandbox: {}. Allow user namespaces (sysctl "
    "user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; in a "
    "container: its seccomp profile, and an unmasked /proc), or grade with --isolation=auto"
)
_TRIES = 10  # at a sandbox, on a machine that is too busy to make one
_PAUSE_SECONDS = 1.0
_NONE = "no ranks can be started, with a sandbox or without: {}"


@dataclass
class Sandboxes:
    """Makes the sandboxes of submissions, one after another."""

    isolation: Isolation
    zygotes: Sequence[Zygote]
    _plans: list[Plan] = field(init=False)
    _refused: list[str] = field(default_factory=list)
    _cgroups: bool = True

    def __post_init__(self) -> None:
        self._plans = [Plan()] if self.isolation == "none" else ladder(root=os.geteuid() == 0)
        if self.isolation == "require":
            self._plans = [plan for plan in self._plans if plan.namespaces]

    @contextmanager
    def servers(self, submission: Sequence[str]) -> Iterator[tuple[Sandbox, list[SandboxLauncher]]]:
        """Give a sandbox for the files of a submission, and a fork server in it from each zygote.

        Raises:
            UsageError: a sandbox is required, and this machine refuses it.
            LaunchError: no processes can be started.
        """
        with ExitStack() as held:
            yield self._servers(submission, held)

    def _servers(self, submission: Sequence[str], held: ExitStack) -> tuple[Sandbox, list[SandboxLauncher]]:
        busy, plans, refused = 0, list(self._plans), list(self._refused)
        while plans:
            try:
                with ExitStack() as trial:
                    made = self._tried(plans[0], submission, trial)
                    held.push(trial.pop_all())
                    return made
            except BusyError:  # less isolation than the machine allows is no answer
                busy += 1
                if busy == _TRIES:
                    raise
                time.sleep(_PAUSE_SECONDS)
            except RefusedError as error:
                if self._cgroups and "cgroup.procs" in str(error):  # it could be made, but not entered
                    self._cgroups = False
                    continue
                refused.append(str(error))
                self._note_refusal(plans.pop(0), submission, str(error))
        said = "; ".join(dict.fromkeys(refused))
        raise UsageError(_REQUIRED.format(said)) if self.isolation == "require" else LaunchError(_NONE.format(said))

    def _note_refusal(self, plan: Plan, submission: Sequence[str], why: str) -> None:
        """Try a plan for no other submission, unless it is this one's files that the machine refuses to show."""
        try:
            with ExitStack() as trial:
                if submission:
                    self._tried(plan, (), trial)
                    return
        except BusyError:
            return
        except RefusedError:
            pass
        self._plans.remove(plan)
        self._refused.append(why)

    def _tried(self, plan: Plan, submission: Sequence[str], held: ExitStack) -> tuple[Sandbox, list[SandboxLauncher]]:
        try:
            plan = self._completed(plan, submission, held)
        except OSError as error:
            raise RefusedError(str(error)) from error
        sandbox = held.enter_context(Sandbox.made(plan, self.zygotes[0]))
        servers = [SandboxLauncher(zygote=zygote, sandbox=sandbox) for zygote in self.zygotes]
        for server in servers:
            held.callback(server.close)
            server.start_server()
        return sandbox, servers

    def _completed(self, plan: Plan, submission: Sequence[str], held: ExitStack) -> Plan:
        if plan.namespaces:
            view = view_of(submission, uid=os.getuid() if plan.uid is None else plan.uid)
            return completed(plan, view, clean_environment(os.environ), self._groups(held))
        home = Path(held.enter_context(_private_home(plan.uid)))
        environment = clean_environment(os.environ, str(home / "home"), str(home / "tmp"))
        if self.isolation == "none":
            return Plan(environment=environment)
        view = view_of([sys.executable, *submission], uid=os.getuid())
        return completed(plan, view, environment, self._groups(held))

    def _groups(self, held: ExitStack) -> Mapping[str, str]:
        return held.enter_context(cgroups()) if self._cgroups else {}


@contextmanager
def _private_home(uid: int | None) -> Iterator[str]:
    """Give a folder for the home and the temporary files of ranks that see the file system of this machine."""
    with temporary_folder() as folder:
        places = [Path(folder), Path(folder, "home"), Path(folder, "tmp")]
        for place in places:
            place.mkdir(exist_ok=True)
            if uid is not None:
                os.chown(place, uid, uid)
        yield folder
