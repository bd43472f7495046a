"""Functions and modules that one process names and another one imports; a function is "module:function".

They are text, so that the controller need not import them.
"""

import sys
from collections.abc import Sequence

HOST = "pytest_ddp.rank_session.session:host"
SIMULATED_HOST = "pytest_ddp.rank_session.simulated:host"
RUN_TEST = "pytest_ddp.rank_session.session:run_test"
PROCEED = "pytest_ddp.rank_session.session:proceed"
JOINED = "pytest_ddp.rank.worker:joined"
EXAMPLE = "pytest_ddp.given.on_rank:example"
CALL = "pytest_ddp.remote_calls.calls:call"
MAKE = "pytest_ddp.remote_calls.objects:make"
USE = "pytest_ddp.remote_calls.objects:use"
RELEASE = "pytest_ddp.remote_calls.objects:release"
POST_MORTEM = "pytest_ddp.rank_session.debugger:post_mortem"

# Set for all processes below one that has joined its job, and below ranks: a pytest that a test starts is in no job.
NO_JOB = "PYTEST_DDP_NO_JOB"

# What the fork server imports, so that ranks need not.
PRELOAD = ("pytest_ddp.rank.preload",)
# What it imports besides if the controller has imported the module on the left.
PRELOAD_IF_IMPORTED = {"pytest": "pytest_ddp.rank_session.session", "hypothesis": "hypothesis"}


def modules_to_preload(first: Sequence[str] = PRELOAD) -> tuple[str, ...]:
    """Return the modules that a fork server imports for this process: `first`, and some that were imported here."""
    return (*first, *(name for module, name in PRELOAD_IF_IMPORTED.items() if module in sys.modules))
