"""`pytest-ddp-grade explain`: each check and each component explains itself, with words and a picture."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, Group

from conformance.checks.aspect import Aspect
from conformance.checks.check import Theme
from conformance.cli import main
from conformance.commands import student
from conformance.components.registry import COMPONENTS
from conformance.explanation.aspects import OF_ASPECTS
from conformance.explanation.mistakes import KNOWN, mistakes_of, usual_mistakes
from conformance.explanation.text import explained
from conformance.explanation.themes import OF_THEMES
from conformance.explanation.topics import promise, topic

PAGE = Path(__file__).parents[2] / "docs/student.md"
_ALL = [(component, check) for component in COMPONENTS.values() for check in component.checks]
_PARTS = ("What is required", "Points", "Why it matters", "Usual mistakes, and what helps", "How it should be")


def shown(*parts, width=80):
    """Return what a terminal of some width shows, without spaces at the ends of lines."""
    written = io.StringIO()
    Console(file=written, width=width).print(Group(*parts))
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def test_every_check_explains_itself_without_an_empty_part():
    for component, check in _ALL:
        text = shown(*explained([component.name, check.id]))
        for part, after in zip(_PARTS, (*_PARTS[1:], None), strict=True):
            words = text.partition(f"\n{part}\n")[2].partition(f"\n{after}\n")[0]
            assert len(words.split()) > 2, (component.name, check.id, part)
        assert check.property.split()[0] in text


def test_every_component_explains_what_is_essential_in_it():
    for component in COMPONENTS.values():
        text = shown(*explained([component.name]))
        assert component.about.split()[-1] in text
        assert all(
            re.search(rf"(^|\s){re.escape(check.id)}(,|$)", text, re.MULTILINE)
            for check in component.checks
            if check.level == "core"
        )
        assert all(str(function).split("(")[0] in text for function in component.contract.functions)
        for aspect in component.aspects:
            if aspect.essential:
                heading = f"\n{aspect.name[0].upper()}{aspect.name[1:]}\n"
                assert heading in text, f"conformance/explanation/aspects.py has no topic {aspect.name!r}"
        assert mistakes_of(promise(component), component)


def test_topics_name_what_there_is():
    assert set(OF_THEMES) == set(Theme.__args__)
    assert set(OF_ASPECTS) <= {aspect.name for component in COMPONENTS.values() for aspect in component.aspects}
    for one in (mistake for about in (*OF_ASPECTS.values(), *OF_THEMES.values()) for mistake in about.mistakes):
        assert one in KNOWN or one.endswith((".", "?")), f"no mistake is called {one!r}"


def test_pictures_fit_a_terminal():
    for about in (*OF_ASPECTS.values(), *OF_THEMES.values()):
        drawn = about.picture.renderables[0] if isinstance(about.picture, Group) else about.picture  # without words
        assert max(map(len, shown(drawn, width=200).splitlines())) <= 78


def test_a_mistake_is_in_the_words_of_the_diagnosis():
    wrapper = COMPONENTS["ddp_bucketed"]
    check = next(one for one in wrapper.checks if one.id == "overlaps_backward")
    said = usual_mistakes(wrapper, check)
    assert any("keep the handle; call its `wait()` in `on_after_backward`" in one for one in said)
    averaged = next(one for one in wrapper.checks if one.id == "gradients_averaged")
    assert any(
        one.startswith("*summed, not averaged*: the gradient is the sum") for one in usual_mistakes(wrapper, averaged)
    )
    assert topic(wrapper, check) is OF_ASPECTS["overlap with backward"]


def test_without_a_name_one_is_asked_for(capsys):
    assert main(["explain", ""]) == 2
    assert "explain: give the name of a component or a check" in capsys.readouterr().err


def test_the_page_for_students_shows_pictures_as_they_are():
    page = PAGE.read_text(encoding="utf-8")
    for name in ("overlap with backward", "buckets"):
        assert f"```\n{shown(OF_ASPECTS[name].picture).strip(chr(10))}\n```" in page
    assert str(student.PUBLIC_SEED) in page


def test_a_component_of_your_own_needs_no_topic_of_its_own():
    own = replace(COMPONENTS["ddp"], aspects=(Aspect("something new", 1, ("gradients_averaged",), essential=True),))
    assert promise(own) is OF_THEMES["numbers"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["ddp_bucketed", "sent_once"], "sent_once (ddp_bucketed)"),
        (["ddp_bucketed: sent_once"], "sent_once (ddp_bucketed)"),
        (["overlaps_backward"], "overlaps_backward (ddp)"),
        (["trains[float32]"], "\ntrains[float32] (sharded_optimizer)"),
        (["sharded_optimizer"], "get_sharded_optimizer(params, optimizer_cls, **kwargs)"),
    ],
)
def test_a_check_is_named_as_reports_name_it(capsys, names, words):
    assert main(["explain", *names]) == 0
    assert words in capsys.readouterr().out


def test_the_points_are_those_of_the_course(tmp_path, monkeypatch, capsys):
    aspects = '[naive_ddp]\nbonus = 3\n[naive_ddp.aspects]\n"gradients are averaged" = { points = 77 }\n'
    (tmp_path / "rubric.toml").write_text(aspects, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    extended = next(check.id for check in COMPONENTS["naive_ddp"].checks if check.level == "extended")
    for names, words in (
        (["naive_ddp"], "gradients are averaged: 77 points, essential"),
        (["naive_ddp", "gradients_averaged"], '"gradients are averaged" (77 points, essential)'),
        (["naive_ddp", extended], "A share of the bonus: 3 points in naive_ddp."),
        (["flat_ddp", "gradients_averaged"], f"({COMPONENTS['flat_ddp'].aspects[0].points:g} points, essential)"),
    ):
        assert main(["explain", *names]) == 0
        assert words in capsys.readouterr().out


def test_a_rubric_that_lies_elsewhere_is_named(tmp_path, capsys):
    rubric = tmp_path / "points.toml"
    rubric.write_text("limit = 4\n", encoding="utf-8")
    assert main(["explain", "--rubric", str(rubric), "naive_ddp"]) == 2
    assert f"{rubric}:1: limit is a share" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["overlap_backward"], "no component and no check is called overlap_backward; do you mean overlaps_backward"),
        (["sharded_optimiser"], "do you mean sharded_optimizer"),
        (["naive_ddp", "sent_twice"], "do you mean sent_once"),
        (["float32"], "do you mean trains[float32]"),
        (["???"], "is called ???; there are the components naive_ddp, flat_ddp"),
    ],
)
def test_an_unknown_name_gets_the_closest_ones(capsys, names, words):
    assert main(["explain", *names]) == 2
    assert words in capsys.readouterr().err
