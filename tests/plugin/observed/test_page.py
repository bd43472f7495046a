"""Every example in docs/observing.md runs, and fails with the output that the page shows, if any."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "observing.md"
_BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
PREAMBLE, *BLOCKS = [(found["kind"], found["text"]) for found in _BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]


def examples() -> Iterator[tuple[str, list[str]]]:
    """Yield each example with the outputs that follow it on the page."""
    example: tuple[str, list[str]] | None = None
    for kind, text in BLOCKS:
        if kind == "python":
            if example:
                yield example
            example = text, []
        elif example:
            example[1].append(text)
    if example:
        yield example


RIGHT = [code for code, shown in examples() if not shown]
WRONG = [pytest.param(code, shown, id=re.findall(r"def (test_\w+)", code)[-1]) for code, shown in examples() if shown]


def run(pytester, *code: str):
    pytester.makepyfile(test_page="\n\n".join([PREAMBLE[1], *code]))
    return pytester.runpytest_inprocess("-p", "no:cacheprovider")


def test_examples_without_output_pass(pytester):
    tests = sum(code.count("def test_") for code in RIGHT)
    assert tests > 10
    run(pytester, *RIGHT).assert_outcomes(passed=tests)


@pytest.mark.parametrize(("code", "shown"), WRONG)
def test_examples_with_output_fail_with_it(pytester, code, shown):
    result = run(pytester, code)
    result.assert_outcomes(failed=1)
    for text in shown:
        result.stdout.re_match_lines([pattern(line) for line in text.splitlines() if line != "..."])


def pattern(line: str) -> str:
    """Return a pattern for a line: `...` stands for anything; any rank may be the first, at any line of the file."""
    words = re.escape(line).replace(re.escape("..."), ".*")
    return ".*" + re.sub(r"(test_page\\\.py:|rank\\ )\d+", r"\1\\d+", words)


def test_the_page_names_every_assertion():
    from pytest_ddp.observed.inspection.selection import Selection  # noqa: PLC0415  imports torch

    assertions = [name for name in dir(Selection) if name.startswith("assert_")]
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in assertions if f"`{name}(" not in page or f".{name}(" not in page] == []
