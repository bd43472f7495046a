"""Which tests' setup is sure to go alike on all ranks, so that setup and call can be one run.

Ranks wait for one another between setup and call, lest some be in the test's collectives while another one has failed
or skipped. There is no need to where setup runs nothing but pytest's own function-scoped fixtures (`tmp_path`,
`monkeypatch`, parameters, ...): everything else that the test uses is alive on the ranks since an earlier test. Should
it go wrong all the same, the ranks in the call are ended after the grace, and setup's error is what is reported.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_ddp.pytest_internals import argument_names, fixture_definitions, parameter_indices

_OURS = ("_pytest.", "pytest_ddp.")
_IN_DISGUISE = (
    "_xunit_setup",
    "_unittest",
)  # fixtures of pytest's that call the suite's own setup_function and the like
_DECISIVE_MARKS = ("skip", "skipif", "xfail", "timeout")  # a limit of pytest-timeout may be for the call alone
_HOOKS = ("pytest_runtest_setup", "pytest_runtest_call")
_PARAMETER = "_pytest.python"  # where the fixtures live that pytest makes of parameters


@dataclass
class Certainty:
    """Follows which fixtures are alive on the ranks while tests run there one after the other."""

    _alive: set[object] = field(default_factory=set)

    def learn(self, item: pytest.Item) -> None:
        """Take note that the test has been set up on every rank."""
        self._alive.update(key for key, fixture in _fixtures(item) if fixture.scope != "function")

    def forget(self) -> None:
        """Take note that the ranks end all their fixtures."""
        self._alive.clear()

    def of_setup(self, item: pytest.Item) -> bool:
        """Whether the test's setup is sure to go alike on every rank."""
        return (
            type(item) is pytest.Function
            and not any(mark.name in _DECISIVE_MARKS for mark in item.iter_markers())
            and not _has_hooks_in_conftest(item, *_HOOKS)
            and not _limits_calls_alone(item.config)
            and all(key in self._alive or _is_pytests_own(fixture) for key, fixture in _fixtures(item))
        )


def ends_alone(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Whether a rank may tear the test down while others are still in its call: no code of the project's own runs."""
    captured = item.config.getoption("capture", "no")
    return (
        following is not None
        and following.parent is item.parent
        and "request" not in argument_names(item)  # it adds finalizers
        and not _has_hooks_in_conftest(item, "pytest_runtest_teardown")
        and captured in {"fd", "no"}  # else the ranks' output is told apart by what asks for it
        and all(_has_nothing_to_end(fixture) for _, fixture in _fixtures(item))
    )


def _has_nothing_to_end(fixture: pytest.FixtureDef[Any]) -> bool:
    return fixture.scope != "function" or fixture.func.__module__.startswith((_PARAMETER, "pytest_ddp."))


def _fixtures(item: Any) -> Iterator[tuple[object, pytest.FixtureDef[Any]]]:
    """Give the fixtures that the test uses, each with a key that tells its parameters apart."""
    indices = parameter_indices(item)
    for name, found in fixture_definitions(item).items():
        yield (found[-1], indices.get(name)), found[-1]


def _is_pytests_own(fixture: pytest.FixtureDef[Any]) -> bool:
    return fixture.func.__module__.startswith(_OURS) and not fixture.argname.startswith(_IN_DISGUISE)


def _has_hooks_in_conftest(item: pytest.Item, *names: str) -> bool:
    relay = item.ihook  # made anew whenever it is asked for
    hooks = (hook for name in names for hook in getattr(relay, name).get_hookimpls())
    return any(hook.plugin_name.endswith("conftest.py") for hook in hooks)


def _limits_calls_alone(config: pytest.Config) -> bool:
    """Whether pytest-timeout is to guard the call only: then pytest must see where that begins."""
    return config.pluginmanager.has_plugin("timeout") and bool(config.getini("timeout_func_only"))
