"""The package ray, which is optional, and a connection to a cluster."""

import logging
import re
import socket
from typing import Any

from pytest_ddp.errors import UsageError

_SECONDS = 10.0


def ray_package(option: str) -> Any:
    """Return the package ray; raise UsageError, which names the option that needs it, if it is not installed."""
    try:
        import ray  # noqa: PLC0415  an optional package
    except ImportError:
        raise UsageError(f"{option} needs the package ray: pip install 'pytest-ddp[ray]'") from None
    return ray


def connect(ray: Any, address: str | None, option: str) -> bool:
    """Connect this process to a cluster, unless it is connected; return whether it was not.

    Args:
        ray: the package.
        address: of the cluster; None for the one that Ray finds, or else one that it starts here.
        option: what the user has given, for messages.

    Raises:
        UsageError: there is no cluster at this address, or it has another version of Ray or Python.
    """
    if ray.is_initialized():
        return False
    _look(address, option)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(f"{option}: {error}") from None
    return True


def _look(address: str | None, option: str) -> None:
    """Raise UsageError if nothing listens at an address: Ray would try again for minutes."""
    found = re.fullmatch(r"([^/]+):(\d+)", address or "")
    if found:
        try:
            socket.create_connection((found[1], int(found[2])), _SECONDS).close()
        except OSError as error:
            raise UsageError(f"{option}: there is no Ray cluster at {address}: {error}") from None
