"""The functions and modules that one process names and another one imports.

A function is written "module:function". Named here once, as text: the controller imports none of them.
"""

HOST = "pytest_ddp.rank_session.session:host"
RUN_TEST = "pytest_ddp.rank_session.session:run_test"
PROCEED = "pytest_ddp.rank_session.session:proceed"
JOINED = "pytest_ddp.rank.worker:joined"
EXAMPLE = "pytest_ddp.given.on_rank:example"
CALL = "pytest_ddp.remote_calls.calls:call"
MAKE = "pytest_ddp.remote_calls.objects:make"
USE = "pytest_ddp.remote_calls.objects:use"
RELEASE = "pytest_ddp.remote_calls.objects:release"
POST_MORTEM = "pytest_ddp.rank_session.debugger:post_mortem"

PRELOAD = ("pytest_ddp.rank.preload",)
# A module that the controller has imported, and what the fork server then imports, so that ranks need not one by one.
PRELOAD_IF_USED = {"pytest": "pytest_ddp.rank_session.preload", "hypothesis": "hypothesis"}
