"""docs/library.md: its example is collected, and it has every argument, claim, verdict and option."""

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from conformance import Claims, verify
from conformance.library.ruling import Kind

PAGE = (Path(__file__).parents[4] / "docs" / "library.md").read_text(encoding="utf-8")


def test_the_example_is_collected_with_the_known_failures_that_the_page_shows(pytester):
    example = next(re.finditer(r"```python\n(.*?)```", PAGE, re.DOTALL))[1]
    pytester.makepyfile(test_conformance=example)
    known = re.findall(r"^(ddp \S+ .*)$", PAGE, re.MULTILINE)
    pytester.path.joinpath("known_failures.txt").write_text("\n".join(known))
    run = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--collect-only", "-q")
    assert run.ret == pytest.ExitCode.OK
    assert known
    assert "test_conformance.py::test_conformance[ddp-runs_to_the_end]" in run.stdout.str()


def test_the_page_has_every_argument_and_every_claim():
    described = ("claims", "known_failures", "libraries")
    for name in inspect.signature(verify).parameters:
        assert f"| `{name}` |" in PAGE or (name in described and name in PAGE), name
    for claim in fields(Claims):
        assert f"| `{claim.name}` |" in PAGE, claim.name


def test_the_page_has_every_verdict_and_option():
    for kind in get_args(Kind):
        assert f"`{kind}`" in PAGE, kind
    for option in ("--update-known-failures", "--conformance-repro=DIR", "--conformance-summary=FILE"):
        assert f"`{option}`" in PAGE, option
