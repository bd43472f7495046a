"""Evidence about the judge: a page with a section per component, which belongs to one state of the judge's code.

A row says with which seeds a bug was caught or right code passed, and after how many scenarios. A run adds to the page
what it finds and skips what the page has, so it may be stopped, and different components may run one after another.
"""

import argparse
import ast
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from conformance.components.registry import COMPONENTS
from pytest_ddp.pool.parent_death import die_with

ROOT = Path(__file__).parents[2]
_JUDGE = ROOT / "conformance"
_NO_PART_IN_VERDICTS = {
    *("cli.py", "commands", "batch", "explanation", "grading", "reproduction"),
    *("__main__.py", "pytest_plugin.py", "test_submission.py"),
    *("sandbox", "submissions"),  # what is tried here is one folder with an adapters.py, graded without a sandbox
}
_REGISTRY = _JUDGE / "components" / "registry.py"  # what it lists decides nothing about one component
_IMPORTED = re.compile(r"^from conformance\.components\.(\w+)", re.MULTILINE)
_WORKERS = 2
_FEWEST_SPACES = 3  # in a sentence; a shorter text may be a name that the code looks for
_SECTION = re.compile(r"^## (?P<component>\w+)\n\nState: (?P<state>\w+)\.\n\n(?P<table>(?:\|.*\n)+)", re.MULTILINE)
Found = dict[str, dict[int, int]]  # scenarios, by the key of a row and by seed


class Subject(Protocol):
    """What the judge is tried with: a bug, or right code."""

    component: str

    @property
    def key(self) -> str:
        """A digest of its code and of what is asked of it."""

    @property
    def cells(self) -> tuple[str, ...]:
        """What its row says of it."""


class Verdict(NamedTuple):
    """How many scenarios ran, and in which way the judge was wrong, if it was."""

    scenarios: int
    fault: str


Judge = Callable[[Sequence[tuple[Any, int]]], list[Verdict]]


class Page(NamedTuple):
    """A page of `docs`, the names of its columns and what it has rows for."""

    path: Path
    columns: tuple[str, ...]
    subjects: Sequence[Subject]

    def read(self) -> Found:
        """Return what was found with the judge in the state it is in now."""
        found: Found = {}
        for section in _SECTION.finditer(self.path.read_text(encoding="utf-8")):
            if section["state"] == state(section["component"]):
                rows = [row.strip("| ").split(" | ") for row in section["table"].splitlines()[2:]]
                found |= {row[0].strip("`"): _by_seed(row[-1]) for row in rows}
        return found

    def add(self, subject: Subject, seed: int, scenarios: int) -> None:
        """Write one result down."""
        found = self.read()
        found.setdefault(subject.key, {})[seed] = scenarios
        self.write(found)

    def write(self, found: Found, *, forget: bool = False) -> None:
        """Write a section for each component; the text before the first stays.

        Args:
            found: what the judge has shown in the state it is in now.
            forget: whether sections that an earlier judge has filled become empty, too, where nothing is found yet.
        """
        text = self.path.read_text(encoding="utf-8")
        head = text.partition("\n## ")[0].rstrip("\n")
        kept = {} if forget else {section["component"]: f"\n{section[0]}" for section in _SECTION.finditer(text)}
        in_order = sorted(self.subjects, key=lambda subject: list(COMPONENTS).index(subject.component))
        by_component = [(name, list(ones)) for name, ones in groupby(in_order, lambda subject: subject.component)]
        sections = [
            self._section(name, subjects, found)
            if name not in kept or any(one.key in found for one in subjects)
            else kept[name]
            for name, subjects in by_component
        ]
        new = self.path.with_suffix(".new")
        new.write_text("\n".join([head, *sections]), encoding="utf-8")
        new.replace(self.path)

    def lists_all(self) -> bool:
        """Return whether the page has a row for each subject, as it is now, and no others."""
        text = self.path.read_text(encoding="utf-8")
        listed = re.findall(r"^\| (`.*) \| [^|]* \|$", text, re.MULTILINE)
        return sorted(listed) == sorted(" | ".join([f"`{one.key}`", *one.cells]) for one in self.subjects)

    def _section(self, component: str, subjects: Sequence[Subject], found: Found) -> str:
        columns = ("id", *self.columns, "scenarios by seed")
        of_state = state(component) if any(one.key in found for one in subjects) else "none"
        rows = [(f"`{one.key}`", *one.cells, _as_cell(found.get(one.key, {}))) for one in subjects]
        table = [f"| {' | '.join(row)} |\n" for row in (columns, ["---"] * len(columns), *rows)]
        return f"\n## {component}\n\nState: {of_state}.\n\n{''.join(table)}"


def _by_seed(cell: str) -> dict[int, int]:
    return {int(seed): int(scenarios) for seed, scenarios in re.findall(r"(\d+): (\d+)", cell)}


def _as_cell(by_seed: dict[int, int]) -> str:
    return ", ".join(f"{seed}: {scenarios}" for seed, scenarios in sorted(by_seed.items())) or "none yet"


def digest(parts: Iterable[str]) -> str:
    """Return a short digest of texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@cache
def code_of(source: str, *, sentences: bool = True) -> str:
    """Return Python source as its syntax tree: without comments, docstrings and layout.

    Args:
        source: the text of a module.
        sentences: whether strings that people read count: their wording decides nothing.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if ast.get_docstring(node, clean=False) is not None:
                    del node.body[0]
            case ast.Constant(value=str(text)) if not sentences and text.count(" ") >= _FEWEST_SPACES:
                node.value = ""
    return ast.dump(tree)


@cache
def state(component: str) -> str:
    """Return a digest of the code that decides the verdicts on a component."""
    return digest(code_of(path.read_text(encoding="utf-8"), sentences=False) for path in deciding(component))


def deciding(component: str) -> Iterator[Path]:
    """Yield the files that decide the verdicts on a component: shared packages, its folder, those it imports from."""
    own = component if (_JUDGE / "components" / component).is_dir() else "wrapper"
    owns = _used_by(own)
    for path in sorted(_JUDGE.glob("**/*.py")):
        first, *rest = path.relative_to(_JUDGE).parts
        elsewhere = first == "components" and len(rest) > 1 and rest[0] not in owns
        if first not in _NO_PART_IN_VERDICTS and path != _REGISTRY and not elsewhere:
            yield path


def _used_by(component: str) -> set[str]:
    """Return a component and those from whose folders it imports."""
    folder = _JUDGE / "components" / component
    texts = (path.read_text(encoding="utf-8") for path in sorted(folder.glob("**/*.py")))
    found = {name for text in texts for name in _IMPORTED.findall(text) if (folder.parent / name).is_dir()}
    return {component}.union(*map(_used_by, found - {component}))


def collect(page: Page, judge: Judge, arguments: argparse.Namespace, *, at_a_time: int, at_least: int = 0) -> int:
    """Try the judge with all that the page lacks; return how often it was wrong.

    Args:
        page: where results are written.
        judge: run in another process, on ranks of its own.
        arguments: what `parser` has parsed.
        at_a_time: how many subjects the judge is given at once.
        at_least: a result counts if it comes from this many scenarios.
    """
    found, began = page.read(), time.monotonic()
    asked = [one for one in page.subjects if one.component in (arguments.component or {one.component})]
    if arguments.check:
        asked = [one for one in asked if getattr(one, "check", None) == arguments.check]
    left = [(one, seed) for seed in arguments.seeds for one in asked if found.get(one.key, {}).get(seed, -1) < at_least]
    if arguments.write:
        page.write(found, forget=True)
        return 0
    done = wrong = 0
    with ProcessPoolExecutor(_WORKERS, get_context("spawn"), die_with, (os.getpid(),)) as pool:
        pieces = [left[at : at + at_a_time] for at in range(0, len(left), at_a_time)]
        running = {pool.submit(judge, piece): piece for piece in pieces}
        for future in as_completed(running):
            for (subject, seed), verdict in zip(running[future], future.result(), strict=True):
                done, wrong = done + 1, wrong + bool(verdict.fault)
                if not verdict.fault:
                    page.add(subject, seed, verdict.scenarios)
                said = verdict.fault or f"as it should be, after {verdict.scenarios} scenarios"
                print(
                    f"{done} of {len(left)}, {time.monotonic() - began:.0f} s: {subject}, seed {seed}: {said}",
                    flush=True,
                )
    print(f"{len(asked)} rows, seeds {arguments.seeds}: {wrong} of {done} new results wrong", flush=True)
    return wrong


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of what both commands can be asked."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--component", action="append", help="only this component; may be given several times")
    found.add_argument("--check", help="only bugs that this check is to catch")
    found.add_argument("--write", action="store_true", help="only bring the rows of the page up to date")
    found.add_argument("seeds", nargs="*", type=int, default=[1, 2], metavar="SEED", help="1 and 2 if none is given")
    return found
