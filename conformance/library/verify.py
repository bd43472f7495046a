"""`conformance.verify`: a library's own suite, as one parametrized test."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from conformance.library.hold import RANKS, hold
from conformance.library.suite import Functions, Suite
from conformance.scenarios.claims import EVERYTHING, Claims
from conformance.submissions.library import FunctionOrName
from pytest_ddp.errors import UsageError


def verify(
    *,
    wrap: FunctionOrName | None = None,
    after_backward: FunctionOrName | None = None,
    sharded: FunctionOrName | None = None,
    both: bool = True,
    fsdp: FunctionOrName | None = None,
    full_parameters: FunctionOrName | None = None,
    engine: FunctionOrName | None = None,
    claims: Claims = EVERYTHING,
    known_failures: str | Path | None = None,
    libraries: Sequence[str] = (),
) -> Callable[..., None]:
    """Return a test with one item for each check of each component. Assign it to a name that begins with `test_`.

    A function is given by its name, "module:function", or as an object that can be imported from a module other than
    the test file.

    Args:
        wrap: `(module) -> wrapped module`, data-parallel; held to the checks of `ddp`.
        after_backward: `(wrapped module, optimizer)`, called between backward and `optimizer.step()`.
        sharded: `(params, optimizer_cls, **options) -> optimizer`, with sharded state; held to those of
            `sharded_optimizer`.
        both: whether `wrap` and `sharded` are also held to the checks of `both`, together.
        fsdp: `(module, compute_dtype) -> wrapped module`, with sharded parameters; held to the checks of `fsdp`.
        full_parameters: `(wrapped module) -> dict` of whole parameters by their names in the bare module; for `fsdp`.
        engine: `(module, optimizer_cls, **options) -> engine`, which is called as the module is, and has
            `backward(loss)`, `step()` and `full_parameters()`; held to the checks of `engine`.
        claims: what the library promises.
        known_failures: a file beside the test file, with a line `component check reason` for each check that fails.
        libraries: packages that the library builds on, whose exceptions count as its own refusals.

    Raises:
        pytest.Collector.CollectError: an argument, or a line of the file, is wrong.
    """
    caller = sys._getframe(1)  # noqa: SLF001  pytest shows items where `verify` is called
    test_file = Path(caller.f_code.co_filename)
    functions = Functions(
        wrap=wrap,
        after_backward=after_backward,
        sharded=sharded,
        both=both,
        fsdp=fsdp,
        full_parameters=full_parameters,
        engine=engine,
    )
    known_file = None if known_failures is None else test_file.parent / known_failures
    suite = Suite(test_file, caller.f_lineno, functions, claims, tuple(libraries), known_file)
    try:
        suite.hold_valid()
    except UsageError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    return _test_of(suite)


def _test_of(suite: Suite) -> Callable[..., None]:
    items = [
        pytest.param(component, check, id=f"{component}-{check}")
        for component, checks in suite.checks.items()
        for check in checks
    ]

    def test_conformance(request: pytest.FixtureRequest, component: str, check: str) -> None:
        """The component has the property that the check is named for."""
        hold(request.node, suite, component, check, request.getfixturevalue(RANKS))

    code = test_conformance.__code__.replace(co_filename=str(suite.test_file), co_firstlineno=suite.line)
    test_conformance.__code__ = code
    return pytest.mark.parametrize(("component", "check"), items)(test_conformance)
