"""The examples of docs/migration run: before as their own harness runs them, after on warm ranks."""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch.testing._internal.common_distributed  # noqa: F401  pytester forgets what an inner run imports

PAGES = Path(__file__).parents[3] / "docs" / "migration"
LONGEST = 20  # lines of code below the imports
_SECTION = re.compile(r"^## (?P<title>.*)\n(?P<text>(?:(?!^## ).*\n?)*)", re.MULTILINE)
_BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
# DeepSpeed is not installed here: a class with its attributes stands for its harness.
HARNESS = """
class DistributedTest:
    world_size = 2
    is_dist_test = True
"""


class Section(NamedTuple):
    """A section of a page with its code blocks: (file, text), where the file of an ini block is pytest.ini."""

    title: str
    blocks: list[tuple[str, str]]


def sections(page: str) -> list[Section]:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return [Section(found["title"], blocks(found["text"])) for found in _SECTION.finditer(text)]


def blocks(text: str) -> list[tuple[str, str]]:
    found = []
    for block in _BLOCK.finditer(text):
        if block["kind"] == "ini":
            found.append(("pytest.ini", block["text"]))
        else:
            [name] = re.findall(r"\A# (\w+\.py)\b", block["text"])
            found.append((name, block["text"]))
    return found


NAMES = ("multi-process-test-case", "multi-proc-continuous-test", "deepspeed", "mp-spawn", "torchrun")
AFTER = [(page, number) for page in NAMES for number, section in enumerate(sections(page)) if number and section.blocks]


def write(pytester, *pieces: tuple[str, str]) -> None:
    folder = pytester.mkpydir("unit")
    (folder / "common.py").write_text(HARNESS)
    for name, text in pieces:
        (pytester.path / name).write_text(text)
    pytester.syspathinsert()


def test_every_page_is_listed_and_has_short_examples():
    assert sorted(NAMES) == sorted(page.stem for page in PAGES.glob("*.md"))
    for page in NAMES:
        for section in sections(page):
            for name, text in section.blocks:
                lines = [line for line in text.splitlines() if line and not line.startswith(("import", "from", "#"))]
                assert len(lines) <= LONGEST, (page, name)


@pytest.mark.parametrize(("page", "number"), AFTER)
def test_after(pytester, page, number):
    before, after = sections(page)[0], sections(page)[number]
    stays = "rewritten" not in after.title
    write(pytester, *(before.blocks if stays else []), *after.blocks)
    args = [name for name, _ in after.blocks if name.startswith("test_")]
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *args)
    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"passed"}
    result.stdout.fnmatch_lines([f"executed: {outcomes['passed']} (*2 ranks*"])


@pytest.mark.long
@pytest.mark.parametrize("page", ["multi-process-test-case", "multi-proc-continuous-test", "mp-spawn", "torchrun"])
def test_before(pytester, page):
    before = sections(page)[0]
    write(pytester, *before.blocks)
    [(name, _)] = before.blocks
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if page == "torchrun" else ["-m", "pytest"]
    run = subprocess.run(
        [sys.executable, *launch, name], cwd=pytester.path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
