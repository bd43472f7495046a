"""Holds data-parallel wrappers and sharded optimizers against single-process training, and grades submissions.

`pytest-ddp-grade PATH` is the command; `pytest --pyargs conformance --ddp-submission=PATH` the test suite.
`conformance.verify(...)`, in a test file of its own, is the suite of a library.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.library.verify import verify
    from conformance.scenarios.claims import Claims

__all__ = ["Claims", "verify"]


def __getattr__(name: str) -> Any:
    """Import what a test file of a library uses when it is used: ranks and commands do without."""
    if name == "verify":
        from conformance.library.verify import verify  # noqa: PLC0415

        return verify
    if name == "Claims":
        from conformance.scenarios.claims import Claims  # noqa: PLC0415

        return Claims
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
