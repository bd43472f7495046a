"""Checks of the private names of other packages: a failure says which feature of ours breaks, and where to mend it."""

from collections.abc import Callable
from importlib.metadata import version
from inspect import signature
from types import ModuleType

import pytest


@pytest.fixture
def still_works(request: pytest.FixtureRequest) -> Callable[[str, ModuleType, Callable[..., None]], None]:
    """Return a function that runs a check of an adapter.

    The check takes fixtures, has the name of the adapter's function, and its docstring reads "NAME: WHAT BREAKS".
    """

    def run(package: str, adapter: ModuleType, check: Callable[..., None]) -> None:
        __tracebackhide__ = True
        arguments = {name: request.getfixturevalue(name) for name in signature(check).parameters}
        try:
            check(**arguments)
        except Exception as error:
            name, _, breaks = (check.__doc__ or "").partition(": ")
            mend = f"{adapter.__name__}.{check.__name__}"
            raise AssertionError(f"{package} {version(package)} has changed {name}: {breaks} Mend {mend}.") from error

    return run
