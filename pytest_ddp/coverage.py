"""Coverage of what runs on ranks: whoever measures the controller gets the ranks' lines as well.

A rank measures from before it imports the first conftest file until it closes, with the controller's configuration,
and leaves a data file beside the controller's, as processes measured in parallel do: pytest-cov combines them by
itself, `coverage run` leaves that to `coverage combine`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# What is true of one process is no reason to worry when others run the rest.
_EXPECTED = ["no-data-collected", "module-not-imported", "module-not-measured"]


def measurement() -> str | None:
    """Return the configuration of the measurement that this process is under, for `measured`; None without one."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage else None
    if current is None:
        return None
    current.set_option("run:disable_warnings", [*current.get_option("run:disable_warnings"), *_EXPECTED])
    configuration: str = current.config.serialize()
    return configuration


@contextmanager
def measured(configuration: str | None) -> Iterator[None]:
    """Measure the body as `measurement` says, and save: nothing is saved at exit, which a rank does by `os._exit`."""
    if configuration is None:
        yield
        return
    from coverage import Coverage  # noqa: PLC0415  only for those who measure

    coverage = Coverage(config_file=f":data:{configuration}", data_suffix=True)
    coverage.start()
    try:
        yield
    finally:
        coverage.stop()
        coverage.save()
