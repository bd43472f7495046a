"""How a rank's pytest is started so that it is the same as the controller's."""

import os
from typing import Any

import cloudpickle
import pytest

from pytest_ddp.controller.terminal import terminal_name
from pytest_ddp.coverage import coverage_config
from pytest_ddp.errors import LaunchError
from pytest_ddp.protocol.session_start import SessionStart
from pytest_ddp.pytest_internals import base_temp, without_capture
from pytest_ddp.settings import Settings

# What only the controller does: report, dump its own stacks, time tests out, measure, run tests again, shuffle them.
_BLOCKED = ("terminal", "faulthandler", "timeout", "cov", "rerunfailures", "randomly")
_NEUTRAL: dict[str, Any] = {
    "capture": "no",
    "usepdb": False,
    "trace": False,
    "xmlpath": None,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "stepwise_skip": False,
    "stepwise_reset": False,
    "cacheclear": False,
    "log_file": os.devnull,
    "collectonly": False,
    "setuponly": False,
    "setupshow": False,
    "setupplan": False,
    "maxfail": 0,
    "numprocesses": None,
    "maxprocesses": None,
    "dist": "no",
    "distload": False,
    "looponfail": False,
    "tx": [],
    "px": [],
}
_NEEDED = ("reports", "tmpdir")
_MISSING = "ranks cannot do without pytest's own plugin {0}: leave out `-p no:{0}`"


def session_start(config: pytest.Config, settings: Settings) -> SessionStart:
    """Return what a rank needs to run a session with this one's root, ini, options and plugins.

    Raises:
        LaunchError: a plugin of pytest's own is missing that ranks cannot do without.
    """
    missing = [name for name in _NEEDED if not config.pluginmanager.has_plugin(name)]
    if missing:
        raise LaunchError(_MISSING.format(missing[0]))
    args = [f"--rootdir={config.rootpath}", "--capture=no", "--override-ini=strict_config=false"]
    if config.inipath is not None:
        args += ["-c", str(config.inipath)]
    options = {name: value for name, value in vars(config.option).items() if _travels(value)}
    options.pop("file_or_dir", None)  # these travel as arguments, and so do plugins, which are loaded before all else
    args += _plugin_args(options.pop("plugins", []))
    options |= {name: value for name, value in _NEUTRAL.items() if name in options}
    # The controller has given these warnings already; on a rank some of them are its own doing, and may be errors.
    quiet = [f"ignore::pytest.{name}" for name in ("PytestAssertRewriteWarning", "PytestConfigWarning")]
    options["pythonwarnings"] = [*(options.get("pythonwarnings") or []), *quiet]
    options["override_ini"] = [*(options.get("override_ini") or []), "strict_config=false"]
    worker = {"workerid": "master", "workercount": 1, **getattr(config, "workerinput", {})}
    return SessionStart(
        args=[*args, *config.args],
        options=options,
        cwd=str(config.invocation_params.dir),
        basetemp=str(base_temp(config)),
        terminal=_terminal(config),
        workerinput={name: value for name, value in worker.items() if _travels(value)},
        settings=settings,
        markers=config.getini("markers"),
        coverage=coverage_config(),
    )


def _plugin_args(asked: list[str]) -> list[str]:
    """Return the arguments that load and block the plugins that this command line does, without those of `_BLOCKED`."""
    last_word = {name.removeprefix("no:"): name for name in asked}
    last_word.pop("capture", None)  # ranks have the option that turns it off
    wanted = [
        word for name, word in last_word.items() if name.removeprefix("pytest_").partition(".")[0] not in _BLOCKED
    ]
    return [part for name in [*wanted, *(f"no:{name}" for name in _BLOCKED)] for part in ("-p", name)]


def _terminal(config: pytest.Config) -> str | None:
    if not config.getoption("usepdb", False) and config.option.ddp_pdb_rank is None:
        return None
    with without_capture(config):
        return terminal_name()


def _travels(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001  options of other plugins hold anything; what cannot be pickled stays here
        return False
    return True
