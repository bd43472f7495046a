"""Configures the pytest on a rank like this one: same root, ini file, options and plugins."""

import os
from typing import Any

import cloudpickle
import pytest

from pytest_ddp.controller.debugger import terminal_name
from pytest_ddp.coverage import coverage_config
from pytest_ddp.errors import LaunchError
from pytest_ddp.protocol.phases import SessionStart
from pytest_ddp.pytest_internals import base_temp, without_capture
from pytest_ddp.settings import Settings

# Plugins that only the controller may have: they report, dump stacks, time tests out, measure, rerun and shuffle.
_BLOCKED = ("terminal", "faulthandler", "timeout", "cov", "rerunfailures", "randomly")
# Options that only the controller heeds, with the values that switch them off on ranks.
_SWITCHES = ("usepdb", "trace", "lf", "failedfirst", "newfirst", "stepwise", "stepwise_skip", "stepwise_reset")
_MORE_SWITCHES = ("cacheclear", "collectonly", "setuponly", "setupshow", "setupplan", "distload", "looponfail")
_OFF: dict[str, Any] = {
    **dict.fromkeys((*_SWITCHES, *_MORE_SWITCHES), False),
    **dict.fromkeys(("xmlpath", "numprocesses", "maxprocesses"), None),
    "capture": "no",
    "log_file": os.devnull,
    "maxfail": 0,
    "dist": "no",
    "tx": [],
    "px": [],
}
_NEEDED = ("reports", "tmpdir")
_MISSING = "ranks need pytest's plugin {0}: leave out `-p no:{0}`"


def session_start(config: pytest.Config, settings: Settings) -> SessionStart:
    """Return what a rank needs to start a session like this one.

    Raises:
        LaunchError: a built-in plugin of pytest that ranks need is switched off.
    """
    missing = [name for name in _NEEDED if not config.pluginmanager.has_plugin(name)]
    if missing:
        raise LaunchError(_MISSING.format(missing[0]))
    args = [f"--rootdir={config.rootpath}", "--capture=no", "--override-ini=strict_config=false"]
    if config.inipath is not None:
        args += ["-c", str(config.inipath)]
    options = {name: value for name, value in vars(config.option).items() if _is_picklable(value)}
    options.pop("file_or_dir", None)  # files are passed as arguments, and so are plugins, which are loaded first
    args += _plugin_args(options.pop("plugins", []))
    options |= {name: value for name, value in _OFF.items() if name in options}
    # The controller has issued these warnings already.
    quiet = [f"ignore::pytest.{name}" for name in ("PytestAssertRewriteWarning", "PytestConfigWarning")]
    options["pythonwarnings"] = [*(options.get("pythonwarnings") or []), *quiet]
    options["override_ini"] = [*(options.get("override_ini") or []), "strict_config=false"]
    with without_capture(config):
        terminal = terminal_name()
    worker = {"workerid": "master", "workercount": 1, **getattr(config, "workerinput", {})}
    return SessionStart(
        args=[*args, *config.args],
        options=options,
        cwd=str(config.invocation_params.dir),
        basetemp=str(base_temp(config)),
        terminal=terminal,
        workerinput={name: value for name, value in worker.items() if _is_picklable(value)},
        settings=settings,
        markers=config.getini("markers"),
        coverage=coverage_config(),
    )


def _plugin_args(asked: list[str]) -> list[str]:
    """Return `-p` arguments like those of this command line, and block the plugins in `_BLOCKED`."""
    last_word = {name.removeprefix("no:"): name for name in asked}
    last_word.pop("capture", None)  # ranks run with --capture=no
    wanted = [
        word for name, word in last_word.items() if name.removeprefix("pytest_").partition(".")[0] not in _BLOCKED
    ]
    return [part for name in [*wanted, *(f"no:{name}" for name in _BLOCKED)] for part in ("-p", name)]


def _is_picklable(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001  plugins store any object as an option
        return False
    return True
