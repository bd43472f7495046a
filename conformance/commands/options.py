"""Options that several commands share, and what their values must be. No import of torch before it is needed."""

import argparse
from pathlib import Path

from conformance.execution.deadlines import IMPORT_SECONDS
from conformance.grading.events import Reports
from conformance.grading.formats import FORMATS
from conformance.grading.formats.report_file import ReportFile
from conformance.grading.report import WORLD_SIZE
from conformance.grading.rubric import NO_RUBRIC, Rubric, read_rubric
from conformance.sandbox.plan import ISOLATIONS
from pytest_ddp.errors import UsageError

COMMAND = "pytest-ddp-grade"
SMALL_WORLD_SIZE = 2


def add_report_options(command: argparse.ArgumentParser, *, rubric_needed: bool = False) -> None:
    """Add `--rubric`, and an option for each form of a report."""
    for form in FORMATS:
        command.add_argument(form.option, dest=form.option, type=Path, metavar="FILE", help=form.help)
    add_rubric(command, needed=rubric_needed)


def add_rubric(command: argparse.ArgumentParser, *, needed: bool = False) -> None:
    """Add `--rubric`."""
    about = "the points, in TOML; `pytest-ddp-grade rubric` prints the default"
    command.add_argument("--rubric", type=Path, metavar="FILE", required=needed, help=about)


def add_with(command: argparse.ArgumentParser) -> None:
    """Add `--with PACKAGE`."""
    about = "install a package that submissions need, in a cached folder of its own; repeatable"
    command.add_argument("--with", dest="packages", action="append", default=[], metavar="PACKAGE", help=about)


def add_isolation(command: argparse.ArgumentParser) -> None:
    """Add `--isolation`."""
    about = "auto: in a sandbox, if this machine allows it; require: not without one; none: without one (%(default)s)"
    command.add_argument("--isolation", choices=ISOLATIONS, default=ISOLATIONS[0], help=about)


def add_import_seconds(command: argparse.ArgumentParser) -> None:
    """Add `--import-seconds`."""
    about = "the longest that a submission may take to import (%(default)s)"
    command.add_argument("--import-seconds", type=int, default=IMPORT_SECONDS, metavar="N", help=about)


def report_files(options: argparse.Namespace, reports: Reports) -> list[ReportFile]:
    """Return the report files that the options ask for."""
    return [ReportFile(path, form, reports) for form in FORMATS if (path := vars(options)[form.option])]


def rubric_of(options: argparse.Namespace) -> Rubric:
    """Return the rubric that `--rubric` names, or none."""
    return read_rubric(options.rubric) if options.rubric else NO_RUBRIC


def components(options: argparse.Namespace, rubric: Rubric) -> tuple[str, ...]:
    """Return the components that `--components` names, or else the rubric; none if neither names any.

    Raises:
        UsageError: `--components` names one that there is not, or is empty.
    """
    from conformance.components.registry import COMPONENTS  # noqa: PLC0415  imports torch

    if options.components is None:
        return tuple(name for name in COMPONENTS if name in rubric.aspects)
    wanted = tuple(dict.fromkeys(name.strip() for name in options.components.split(",") if name.strip()))
    unknown = [name for name in wanted if name not in COMPONENTS]
    if unknown or not wanted:
        wrong = f"--components: there is no {' and no '.join(unknown)}" if unknown else "--components is empty"
        raise UsageError(f"{wrong}; choose from {', '.join(COMPONENTS)}")
    return wanted


def world_size(options: argparse.Namespace) -> int:
    """Return the world size that the options ask for, if this machine can run it; else raise UsageError."""
    from pytest_ddp.planning.plan import Machine  # noqa: PLC0415  imports torch

    usual = SMALL_WORLD_SIZE if options.small else WORLD_SIZE
    wanted: int = usual if options.world_size is None else options.world_size
    most = Machine.detect().max_world_size("cpu")
    if wanted == 1:
        raise UsageError("--world-size 1: a single rank has nothing to synchronise; give 2 or more")
    if not 1 < wanted <= most:
        raise UsageError(f"--world-size {wanted}: this machine runs 2 to {most} ranks")
    return wanted


def positive(option: str, value: int) -> int:
    """Return the value of an option, if it is 1 or more; else raise UsageError."""
    if value < 1:
        raise UsageError(f"{option} {value}: give 1 or more")
    return value
