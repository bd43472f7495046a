"""`pytest-ddp-gpu-gate`: looks at the machine, runs the tests, reads their report, and writes the verdict."""

import argparse
import contextlib
import datetime as dt
import os
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, NoReturn

from pytest_ddp.errors import UsageError
from pytest_ddp.gpu_gate import devices
from pytest_ddp.gpu_gate.candidate import Candidate, environment
from pytest_ddp.gpu_gate.devices import Gpu, UnfitError
from pytest_ddp.gpu_gate.junit import ReportError, parse, read_bytes
from pytest_ddp.gpu_gate.policy import Policy
from pytest_ddp.gpu_gate.summary import Verdict, annotations, to_json, to_markdown
from pytest_ddp.gpu_gate.verdict import FAILED, MISUSED, UNFIT, Finding, Seen, judge

_FILES = ("log.txt", "junit.xml", "summary.md", "verdict.json")
_LOOK_SECONDS = 0.25  # a short test uses its GPU for half a second
_DESCRIPTION = """\
Run tests on GPUs, and fail unless they really ran there. What follows `--` goes to pytest.
Exit code 0: green; 1: a test failed, was skipped unexpectedly, or the run does not count; 2: the command or the
quarantine file is wrong; 3: the GPUs are missing, hidden, held by others, or cannot compute."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the gate; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        policy = Policy.read(options.quarantine, options.gpus)
    except UsageError as error:
        print(f"pytest-ddp-gpu-gate: {error}", file=sys.stderr)  # noqa: T201  a command prints
        return MISUSED
    signal.signal(signal.SIGTERM, _leave)  # a cancelled job leaves no processes on the GPUs
    verdict = Verdict(policy=policy)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in _FILES:  # of an earlier run
        (options.out / name).unlink(missing_ok=True)
    try:
        _gate(options, verdict)
    except UnfitError as error:
        verdict.findings.append(Finding(str(error)))
        verdict.exit_code = UNFIT
    _write(verdict, options.out)
    return verdict.exit_code


def _leave(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _gate(options: argparse.Namespace, verdict: Verdict) -> None:
    look = partial(devices.usable, options.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    wait = partial(devices.wait_until_free, look, options.max_held, options.wait)
    verdict.gpus, full = wait()
    if full:
        raise UnfitError("; ".join(full))
    with _scratch() as folder:
        places = {"{run}": str(folder), "{candidate}": str(options.candidate.resolve())}
        python = [_filled(part, places) for part in shlex.split(options.python)]
        variables = environment(os.environ, options.passed, folder)
        candidate = Candidate(python, options.candidate, variables)
        verdict.torch = candidate.check_gpus(options.gpus)
        seen = _run(candidate, options, folder, verdict.gpus)
        try:
            data = read_bytes(folder / "junit.xml")
            verdict.cases = parse(data)
            (options.out / "junit.xml").write_bytes(data)
        except ReportError as error:
            verdict.findings.append(Finding(str(error)))
    seen = Seen(seen.ended, seen.before, seen.peak_mib, wait()[1])
    today = dt.datetime.now(dt.UTC).date()
    verdict.findings += judge(verdict.cases, seen, verdict.policy, min_executed=options.min_executed, today=today)
    verdict.exit_code = FAILED if verdict.findings else verdict.exit_code


def _filled(text: str, places: Mapping[str, str]) -> str:
    for name, path in places.items():
        text = text.replace(name, path)
    return text


def _run(candidate: Candidate, options: argparse.Namespace, folder: Path, before: Sequence[Gpu]) -> Seen:
    peak: dict[str, int] = {}

    def look() -> None:
        for uuid, mib in devices.held_mib().items():
            peak[uuid] = max(mib, peak.get(uuid, 0))

    arguments = ["-m", "pytest", *options.pytest, *_own_arguments(options, folder)]
    with (options.out / "log.txt").open("wb") as log, _commands_stopped() as echo:
        started = candidate.run(arguments, log, echo, options.timeout)
        return Seen(started.wait(look, _LOOK_SECONDS), before, peak)


def _own_arguments(options: argparse.Namespace, folder: Path) -> list[str]:
    """Return the options that decide; they stand last, so they win over those of the candidate's ini file."""
    return [
        f"--ddp-require-cuda={options.gpus}",
        f"--ddp-min-executed={options.min_executed}",
        f"--junitxml={folder / 'junit.xml'}",
        "--override-ini=junit_family=xunit1",  # with the file and the line of each test
    ]


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Give a folder for the candidate; the folder with the verdict is not the candidate's."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-gate-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _commands_stopped() -> Iterator[IO[bytes]]:
    """Give the standard output; while the candidate writes to it, GitHub obeys no command in it."""
    echo = sys.stdout.buffer
    token = secrets.token_hex(16) if os.environ.get("GITHUB_ACTIONS") else ""
    if token:
        echo.write(f"::stop-commands::{token}\n".encode())
        echo.flush()
    try:
        yield echo
    finally:
        if token:
            echo.write(f"\n::{token}::\n".encode())
            echo.flush()


def _write(verdict: Verdict, out: Path) -> None:
    markdown = to_markdown(verdict)
    (out / "summary.md").write_text(markdown, encoding="utf-8")
    (out / "verdict.json").write_text(to_json(verdict), encoding="utf-8")
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(markdown)
    lines = list(annotations(verdict)) if os.environ.get("GITHUB_ACTIONS") else []
    print("\n".join([*lines, markdown]), flush=True)  # noqa: T201  a command prints


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "pytest-ddp-gpu-gate", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--gpus", type=_count, default=1, metavar="N", help="GPUs that the tests must find and use (default: 1)")
    add("--min-executed", type=_count, default=1, metavar="N", help="distributed tests that must run (default: 1)")
    add("--max-held", type=_count, default=1024, metavar="MIB", help="memory that others may hold of a GPU (1024)")
    add("--wait", type=float, default=30.0, metavar="S", help="seconds to wait for memory to be given back (30)")
    add("--timeout", type=float, default=1800.0, metavar="S", help="seconds that the tests may take (1800)")
    add("--quarantine", type=Path, metavar="FILE", help="flaky tests and expected skips, as TOML")
    add("--candidate", type=Path, default=Path(), metavar="DIR", help="checkout to test (default: this folder)")
    add(
        "--python",
        default=shlex.quote(sys.executable),
        metavar="CMD",
        help="starts the candidate's Python; {run}: see docs/ci.md",
    )
    add("--pass", dest="passed", action="append", default=[], metavar="NAME", help="variable that the tests get, too")
    add("--out", type=Path, default=Path("gpu-gate"), metavar="DIR", help="folder for the log and the verdict")
    add("pytest", nargs="*", metavar="-- ARGUMENT", help="arguments for pytest")
    return parser


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"expected an integer from 1; got {text!r}")
    return int(text)
