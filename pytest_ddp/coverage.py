"""Coverage of the lines that run on ranks, measured if the controller is under coverage itself.

A rank uses the controller's configuration and measures from before it imports the first conftest file until it closes.
It saves a data file of its own beside the controller's. pytest-cov combines the files by itself; after `coverage run`,
`coverage combine` does.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Warnings about one process that ran only a part of the code: ranks and controller share the work.
_EXPECTED_WARNINGS = ["no-data-collected", "module-not-imported", "module-not-measured"]


def coverage_config() -> str | None:
    """Return the configuration of the coverage that measures this process, serialised; None if none does."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage else None
    if current is None:
        return None
    disabled = current.get_option("run:disable_warnings")
    current.set_option("run:disable_warnings", [*disabled, *_EXPECTED_WARNINGS])
    config: str = current.config.serialize()
    return config


@contextmanager
def measure_coverage(config: str | None) -> Iterator[None]:
    """Measure the body with a configuration from `coverage_config`, and save; do nothing for None.

    The data are saved here and not at exit: a rank exits with `os._exit`.
    """
    if config is None:
        yield
        return
    from coverage import Coverage  # noqa: PLC0415  installed only where coverage is measured

    coverage = Coverage(config_file=f":data:{config}", data_suffix=True)
    coverage.start()
    try:
        yield
    finally:
        coverage.stop()
        coverage.save()
