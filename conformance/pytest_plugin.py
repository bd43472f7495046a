"""Declares the options of `pytest --pyargs conformance` to every pytest run, so that it works from any folder.

Loaded through an entry point: it must import neither torch nor the suite.
"""

import pytest

from pytest_ddp.errors import UsageError


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("ddp", "distributed tests (pytest-ddp)")
    group.addoption(
        "--ddp-submission",
        default=None,
        metavar="PATH",
        help="folder, file or module with adapters, for `pytest --pyargs conformance`",
    )
    group.addoption(
        "--ddp-from-scratch",
        action="store_true",
        help="with --ddp-submission: fail components that use torch's own implementation",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a path that holds no adapters before anything is collected."""
    given = config.getoption("--ddp-submission")
    if given is None:
        return
    from conformance.submissions.location import locate  # noqa: PLC0415  most runs need none of it

    try:
        locate(given)
    except UsageError as error:
        raise pytest.UsageError(f"--ddp-submission: {error}") from None
