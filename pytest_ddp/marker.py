"""The `distributed` decorator."""

import unittest
from collections.abc import Sequence
from functools import partial, wraps
from types import BuiltinFunctionType
from typing import Any, TypeVar, overload

import pytest

from pytest_ddp.errors import UsageError
from pytest_ddp.planning.request import Request, mark_options
from pytest_ddp.pytest_internals import AS_PYTEST, FixtureFunctionDefinition, decorated_function

FIXTURE_OPTIONS = "_pytest_ddp_options"
Decorated = TypeVar("Decorated")


class Distributed(pytest.MarkDecorator):
    """The value of `distributed(...)`: a decorator, and a mark for `pytestmark` and `pytest.param(..., marks=...)`."""

    def __init__(self, mark: pytest.Mark) -> None:
        super().__init__(mark, **AS_PYTEST)

    def __call__(self, target: Decorated) -> Decorated:  # type: ignore[override]  # takes fixtures, and no arguments
        """Decorate a test function, a test class or a fixture; raise UsageError for anything else."""
        if isinstance(target, FixtureFunctionDefinition):
            setattr(decorated_function(target), FIXTURE_OPTIONS, self.mark.kwargs)
            return target
        if isinstance(target, classmethod):
            raise UsageError("@distributed goes below @classmethod, on the function itself")
        if not callable(target) or isinstance(target, BuiltinFunctionType):  # pytest cannot mark a builtin
            size = target if isinstance(target, int | list | tuple) else 2
            raise UsageError(
                "@distributed takes keywords and decorates a test function, a test class or a fixture; "
                f"got {target!r}: write @distributed(world_size={size!r})"
            )
        decorated: Decorated = super().__call__(target)
        any_target: Any = target
        if isinstance(any_target, type) and issubclass(any_target, unittest.TestCase):
            _refuse_other_runners(any_target)
        return decorated


def _refuse_other_runners(case: type[unittest.TestCase]) -> None:
    """Make the tests of a class fail with a message if unittest runs them, which uses one process."""
    run = case.run

    @wraps(run)
    def run_by_pytest(self: unittest.TestCase, result: Any = None) -> Any:
        if isinstance(result, unittest.TestResult | None):  # pytest passes its own test
            self.setUp = partial(_raise_no_ranks, type(self))  # type: ignore[method-assign]
        return run(self, result)

    case.run = run_by_pytest  # type: ignore[method-assign]


def _raise_no_ranks(case: type) -> None:
    name = case.__qualname__
    raise UsageError(
        f"{name} is @distributed: only pytest runs it on ranks; run `pytest -k {name}` instead of unittest"
    )


@overload
def distributed(function: Decorated, /) -> Decorated: ...


@overload
def distributed(
    *,
    world_size: int | Sequence[int] | None = None,
    backend: str | None = None,
    device: str | None = None,
    timeout: float | None = None,
    isolation: str | None = None,
    observe: bool | None = None,
    group: bool | None = None,
    nodes: int | None = None,
    schedule: Any = None,
    faults: Any = None,
    reduction: str | None = None,
) -> Distributed: ...


def distributed(function: Any = None, /, **options: Any) -> Any:
    """Run a test on every rank of a fresh process group, or set a fixture up on ranks only.

    On a class, it applies to the tests of the class. If several apply to a test (module `pytestmark`, class, function),
    each option has the value that is written nearest to the test. On a fixture, write it above `@pytest.fixture`: then
    only distributed tests can use the fixture, and its options are their defaults. If the scope of the fixture is wider
    than "function", all tests of that scope share the process group in which the fixture was set up.

    Args:
        function: the test, class or fixture, if `@distributed` is written without parentheses.
        **options: the keywords that follow.
        world_size: number of ranks; a list runs the test once per size. Default: `--ddp-world-size`.
        backend: "gloo", "nccl", "mpi" or "ucc"; "sim" for simulated ranks. Default: `--ddp-backend`, else gloo
            on CPU and NCCL on CUDA.
        device: "cpu", "cuda", or "auto" for CUDA if there are enough GPUs. Default: `--ddp-device`.
        timeout: seconds that setup, call and teardown may each take. Default: `--ddp-timeout`.
        isolation: "warm" (default) reuses rank processes from test to test; "process" starts new ones for this test.
        observe: True records every operation of the process groups of the test; see `ddp.collectives`.
        group: False gives the ranks no default process group, for a test that calls `init_process_group` itself.
        nodes: the number of nodes that the ranks must be on; other runs than those on several nodes skip the test.
        schedule: of simulated ranks: `pytest_ddp.strategies.schedules()`, or choices to replay such as "12:1,16:2".
        faults: of simulated ranks: what happens to their operations, or a strategy that draws it.
        reduction: of simulated ranks: the order in which reductions add: "rank_order" (default), "ring" or "tree".

    Raises:
        UsageError: for an invalid value, or an option that does not exist.
    """
    Request.of(**mark_options((), options))  # the error points at the decorator
    written = {name: value for name, value in options.items() if value is not None}
    decorate = Distributed(pytest.mark.distributed(**written).mark)
    return decorate if function is None else decorate(function)
