"""What every process of a sandbox gives up before code of the submission runs in it."""

import errno
import os
import resource

from conformance.sandbox import kernel
from conformance.sandbox.plan import Plan


def set_limits(plan: Plan) -> None:
    """Set the resource limits, for this process and those that it starts."""
    for name, value in plan.limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def set_environment(plan: Plan) -> None:
    """Have only the variables of the plan."""
    os.environ.clear()
    os.environ.update(plan.environment)


def drop_privileges(plan: Plan) -> None:
    """Become the plan's user, and keep no capability; raise OSError if that user cannot read what it must.

    Another user may read every file that the sandbox shows, if it has a user namespace: students' files are often
    readable for their owner alone.
    """
    if plan.uid is not None:
        kernel.become(plan.uid, plan.uid, reads_all=plan.user_namespace)
    elif plan.namespaces:
        kernel.drop_capabilities()
    kernel.gain_nothing()
    _require_readable(plan)
    if plan.namespaces or plan.uid is not None:
        kernel.hide_memory()


def _require_readable(plan: Plan) -> None:
    """Raise PermissionError if another user may not read what is shown, and has no capability for it."""
    for place in plan.view.shown if plan.uid is not None and not plan.user_namespace else ():
        if not os.access(place, os.R_OK):
            raise PermissionError(errno.EACCES, "another user than the grader cannot read it", place)
