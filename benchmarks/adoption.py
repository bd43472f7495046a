"""Suites in the style of other libraries: on warm ranks, and under the launcher that they were written for.

Each way runs the whole suite, alternately, `--rounds` times; the table shows the fastest run of each in seconds.

    python benchmarks/adoption.py [--rounds 3]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

SUITES = Path(__file__).parent.parent / "examples" / "suites"
ALONE = ("-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:randomly", "-p", "no:rerunfailures", "-q")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "pytest", "-p", "no:ddp")
# The commands that together run all tests of a suite as its authors do.
LAUNCHERS = {
    "composer_like": [TORCHRUN, ("-m", "pytest", "-p", "no:ddp")],
    "deepspeed_like": [("-m", "pytest", "-p", "no:ddp")],
}


def seconds(folder: Path, commands: Sequence[Sequence[str]]) -> float:
    """Run commands one after the other; raise CalledProcessError if one fails."""
    began = perf_counter()
    for command in commands:
        arguments = [sys.executable, *command, *ALONE, "--rootdir", str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(arguments, cwd=folder, env=environment, check=True, capture_output=True)
    return perf_counter() - began


def adopt(folder: Path) -> None:
    """Change a copy of a suite so that it runs on warm ranks."""
    shutil.copy(folder / "adopted.ini", folder / "pytest.ini")
    if (folder / "conftest_adopted.py").exists():
        shutil.copy(folder / "conftest_adopted.py", folder / "conftest.py")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print(f"{'suite':16} {'launcher':>10} {'warm ranks':>10} {'ratio':>6}")
    for suite, launcher in LAUNCHERS.items():
        with tempfile.TemporaryDirectory() as scratch:
            before, after = (
                Path(shutil.copytree(SUITES / suite, Path(scratch) / name)) for name in ("before", "after")
            )
            adopt(after)
            runs = [(seconds(before, launcher), seconds(after, [("-m", "pytest")])) for _ in range(rounds)]
        launched, warm = (min(times) for times in zip(*runs, strict=True))
        print(f"{suite:16} {launched:10.1f} {warm:10.1f} {launched / warm:6.1f}")


if __name__ == "__main__":
    main()
