"""Evidence about the judge belongs to a state of the code: English may change, code may not."""

from dataclasses import dataclass
from pathlib import Path

import evidence
import pytest

SOURCE = '''"""A module."""

def double(x):  # twice
    """Return twice as much."""
    return 2 * x
'''


@pytest.mark.parametrize(
    ("new", "same"),
    [
        (SOURCE.replace("A module", "Of modules, one"), True),
        (SOURCE.replace('    """Return twice as much."""\n', ""), True),
        (SOURCE.replace("  # twice", ""), True),
        (SOURCE.replace("return 2 * x", "return (2 *\n        x)"), True),
        (SOURCE.replace("2", "3"), False),
        (SOURCE.replace("double", "twice"), False),
    ],
)
def test_only_code_counts(new, same):
    assert (evidence.code_of(new) == evidence.code_of(SOURCE)) is same


def test_messages_are_code():
    assert evidence.code_of("x = 'one two three four'") != evidence.code_of("x = 'one two three'")


def test_of_what_decides_sentences_do_not_count():
    texts = ("Four words are enough", "Call its `wait()` before.")
    one, another = (evidence.code_of(f"x = {text!r}", sentences=False) for text in texts)
    assert one == another
    assert evidence.code_of("x = 'one'", sentences=False) != evidence.code_of("x = 'two'", sentences=False)


@pytest.mark.parametrize(
    ("path", "components"),
    [
        ("components/wrapper/record.py", {"naive_ddp", "ddp"}),
        ("components/fsdp/record.py", {"fsdp"}),
        ("components/sharded_optimizer/assertions.py", {"engine"}),  # it imports from there
        ("components/registry.py", set()),
        ("explanation/aspects.py", set()),
        ("judging/triage.py", {"fsdp", "naive_ddp", "ddp", "engine"}),
        ("cli.py", set()),
        ("reproduction/script.py", set()),
    ],
)
def test_a_file_decides_the_verdicts_on_its_component_or_on_all(path, components):
    file = evidence.ROOT / "conformance" / path
    assert file.exists()
    assert {name for name in ("fsdp", "naive_ddp", "ddp", "engine") if file in evidence.deciding(name)} == components


@dataclass(frozen=True)
class Subject:
    component: str
    key: str
    cells: tuple[str, ...] = ("`a | b`",)


@pytest.fixture
def page(tmp_path: Path) -> evidence.Page:
    (tmp_path / "page.md").write_text("# Page\n\nText.\n", encoding="utf-8")
    return evidence.Page(tmp_path / "page.md", ("code",), [Subject("fsdp", "aaa"), Subject("ddp", "bbb")])


def test_a_page_holds_what_was_found_and_goes_on(page):
    page.add(page.subjects[0], 2, 7)
    page.add(page.subjects[0], 1, 100)
    page.add(page.subjects[1], 1, 3)
    assert page.read() == {"aaa": {1: 100, 2: 7}, "bbb": {1: 3}}
    assert page.path.read_text(encoding="utf-8").startswith("# Page\n\nText.\n\n## ddp\n\nState: ")


def test_a_component_whose_code_changes_loses_its_evidence_alone(page, monkeypatch):
    page.add(page.subjects[0], 1, 7)
    page.add(page.subjects[1], 1, 3)
    before = evidence.state
    monkeypatch.setattr(evidence, "state", lambda name: "other" if name == "fsdp" else before(name))
    assert page.read() == {"bbb": {1: 3}}
    page.add(page.subjects[1], 2, 4)
    assert "| `aaa` | `a | b` | 1: 7 |" in page.path.read_text(encoding="utf-8"), "the section tells its state"
    page.add(page.subjects[0], 2, 9)
    assert page.read() == {"aaa": {2: 9}, "bbb": {1: 3, 2: 4}}
    monkeypatch.setattr(evidence, "state", lambda _: "a third")
    page.write({}, forget=True)
    assert page.path.read_text(encoding="utf-8").count("none yet") == 2


def test_a_page_lists_its_subjects_with_their_code(page):
    page.write({})
    assert page.lists_all()
    assert not page._replace(subjects=page.subjects[:1]).lists_all()
    assert not page._replace(subjects=[page.subjects[0], Subject("ddp", "ccc")]).lists_all()
