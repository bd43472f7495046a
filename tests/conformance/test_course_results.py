"""The results of a course, without a grade: what is kept, what is said at the end, and what a person should look at."""

import json
import re
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from rich.console import Console

from conformance.batch.course import Course, grade_course
from conformance.batch.entries import Entry, entries
from conformance.batch.folders import remove_tree
from conformance.batch.gradebook import Graded, class_page, gradebook
from conformance.batch.human_eye import reasons
from conformance.batch.local_executor import LocalExecutor
from conformance.batch.progress import CourseProgress, LiveCourseProgress
from conformance.batch.record import PACKAGES, Record
from conformance.batch.results import LOCK, RUBRIC, Results, require_new
from conformance.checks.aspect import Aspect
from conformance.cli import main
from conformance.commands.course import asked_components, say_memory_of, say_without_namespaces
from conformance.grading.formats import to_json_text
from conformance.grading.grade import Grading
from conformance.grading.marks import RULES
from conformance.grading.report import NONE_DEFINED, CheckReport, ComponentReport, Environment, Report
from conformance.grading.rubric import NO_RUBRIC, Rubric
from conformance.grading.visible import visible, visible_names
from pytest_ddp.errors import UsageError

ASPECTS = (Aspect("averages", 5, ("averages", "sums"), essential=True), Aspect("overlaps", 5, ("overlaps",)))
KEY = {"its content": "a"}
HOW = {"the seed": "1", "the options": "--core"}


def check(name, status="passed", **more):
    return CheckReport(name, "core", status, "", **more)


def component(*checks, name="ddp", **more):
    return ComponentReport(name, checks, ASPECTS, **more)


def report(*components, name="ada", **more):
    return Report(name, Environment("2", "3", "gloo", "cpu", 4, 1), components, **more)


RIGHT = component(check("averages"), check("sums"), check("overlaps"))
WRONG = component(check("averages", "failed", cause="sums instead of averaging"), check("sums"), check("overlaps"))
ABSENT = component(check("averages", "not_run"), name="fsdp", submitted=False)
UNGRADED = component(check("averages", "not_run"), graded=False)


@pytest.fixture
def record(tmp_path):
    found = Record("ada", tmp_path / "ada", ("ddp", "fsdp"))
    found.begin(KEY)
    found.plan(report(UNGRADED, replace(UNGRADED, name="fsdp")))
    return found


def write_part(record, *components, **more):
    record.next_part().write_text(to_json_text([report(*components, **more)]), encoding="utf-8")


def test_what_one_run_graded_is_left_out_of_the_next(record):
    assert record.ungraded() == ("ddp", "fsdp")
    write_part(record, RIGHT, replace(UNGRADED, name="fsdp"), finished=False)
    assert (record.ungraded(), record.current()) == (("fsdp",), "fsdp")
    write_part(record, replace(WRONG, name="fsdp"))
    assert record.ungraded() == ()
    assert [one.status for one in record.report().components] == ["passed", "failed"]


def test_another_key_forgets_what_was_found_and_says_what_changed(record):
    write_part(record, RIGHT)
    assert record.begin(KEY) == []
    assert record.ungraded() == ("fsdp",)
    assert record.begin({"its content": "b"}) == ["its content"]
    assert record.report() is None


def test_other_packages_are_for_what_lacked_something(record):
    write_part(record, RIGHT, replace(RIGHT, name="fsdp"))
    with_einops = KEY | {PACKAGES: "einops"}
    assert (record.begin(with_einops), record.ungraded()) == ([], ())
    write_part(record, component(check("averages", "not_gradable")), replace(RIGHT, name="fsdp"))
    assert (record.begin(with_einops), record.ungraded()) == ([], ())
    assert record.begin(KEY | {PACKAGES: "einops jax"}) == [PACKAGES]
    assert record.report() is None


def test_a_part_that_was_being_written_when_the_machine_went_down_is_as_good_as_none(record):
    record.next_part().write_text('{"submissions": [', encoding="utf-8")
    assert record.ungraded() == ("ddp", "fsdp")
    assert record.next_part().name == "part-002.json"


def test_a_larger_limit_goes_on_with_what_was_cut_off(record):
    record.settle("cut off", "give more", 60)
    record.begin(KEY, 60)
    assert (record.why, record.ungraded()) == ("cut off: give more", ())
    record.begin(KEY, 120)
    assert (record.why, record.ungraded()) == ("", ("ddp", "fsdp"))
    record.settle("the grader ended 3 times")
    record.begin(KEY, 1e9)
    assert record.why == "the grader ended 3 times"


def test_components_that_are_asked_for_later_are_planned_then(record):
    write_part(record, RIGHT, replace(RIGHT, name="fsdp"))
    later = replace(record, components=("fsdp", "zero", "ddp"))
    later.plan(report(replace(UNGRADED, name="zero"), replace(UNGRADED, name="ddp")))
    assert later.ungraded() == ("zero",)
    assert [one.name for one in later.report().components] == ["fsdp", "zero", "ddp"]


def test_who_has_none_of_the_first_components_may_have_those_that_are_asked_for_later(record):
    none = f"the adapters of ada {NONE_DEFINED}; looked for f()"
    write_part(record, UNGRADED, replace(UNGRADED, name="fsdp"), not_graded_because=none)
    assert (record.ungraded(), reasons(record.report(), "")) == ((), [none])
    later = replace(record, components=("ddp", "fsdp", "zero"))
    later.plan(report(UNGRADED, replace(UNGRADED, name="fsdp"), replace(UNGRADED, name="zero")))
    assert later.ungraded() == ("zero",)
    write_part(record, replace(UNGRADED, name="zero"), not_graded_because=none)
    assert [one.status for one in later.report().components] == ["not_submitted"] * 3
    assert reasons(later.report(), "") == ["none of the components is submitted"]


def test_a_submission_that_says_very_much_fills_no_gradebook(record):
    write_part(record, UNGRADED, not_graded_because=visible(f"no import:\n{'A' * 10**7}"))
    assert len(json.dumps(record.report().to_json())) < 10**5
    (said,) = reasons(record.report(), "")
    assert len(said) < 2000
    assert visible_names({f"x\x1b\n{number}" for number in range(100)})[0] == r"x\x1b"


def test_a_resumed_grade_says_as_well_which_function_a_component_lacks(record):
    lacking = replace(UNGRADED, name="fsdp", submitted=False, graded=True, missing_functions=("f",))
    write_part(record, RIGHT)
    write_part(record, lacking, not_graded_because=f"the adapters of ada {NONE_DEFINED}; fsdp lacks f")
    assert reasons(record.report(), "") == ["fsdp: lacks f"]


def test_a_submission_is_called_by_its_name_not_by_the_place_where_it_was_graded(record):
    because = "no adapters in out/ada/submission: nothing is there"
    write_part(record, UNGRADED, name="out/ada/submission", not_graded_because=because)
    assert reasons(record.report(), "") == ["no adapters in ada: nothing is there"]


LIMITED = component(check("averages", "failed"), check("sums", "failed"), check("overlaps"))


@pytest.mark.parametrize(
    ("graded", "why", "said"),
    [
        (report(RIGHT), "", []),
        (report(WRONG), "", []),
        (report(replace(WRONG, aspects=(replace(ASPECTS[0], points=1 / 3), ASPECTS[1]))), "", []),
        (report(UNGRADED, not_graded_because="no import:\nTraceback\nKeyError: 1"), "", ["no import: KeyError: 1"]),
        (report(UNGRADED), "cut off after 60 s", ["cut off after 60 s"]),
        (report(UNGRADED), "", ["ddp: not graded"]),
        (report(component(check("averages", "error"))), "", ["ddp: an error of the grader"]),
        (report(component(check("averages", "not_gradable"))), "", ["ddp: this machine lacks something"]),
        (report(replace(RIGHT, uses_from_torch=("DDP",))), "", ["ddp: uses DDP"]),
        (report(RIGHT, replace(ABSENT, missing_functions=("f", "g"))), "", ["fsdp: lacks f and g"]),
        (report(RIGHT, replace(ABSENT, not_implemented="`get_fsdp` raises NotImplementedError")), "", []),
        (
            report(RIGHT, replace(ABSENT, not_implemented="`fsdp_gather` raises NotImplementedError")),
            "",
            ["fsdp: `fsdp_gather` raises NotImplementedError"],
        ),
        (
            report(component(check("averages", "failed", diagnosis="This is a race: 3 of 11"), check("sums"))),
            "",
            ["ddp: averages failed only sometimes"],
        ),
        (
            report(component(check("sums", "failed", message="x has been replaced; the grader measures with it"))),
            "",
            ["ddp: sums failed because of what belongs to the grader: read its message"],
        ),
        (
            report(replace(LIMITED, aspects=(replace(ASPECTS[0], points=2), ASPECTS[1]))),
            "",
            ['ddp: 5 points are limited to 2.8, because "averages" is missing'],
        ),
    ],
    ids=[
        "right",
        "wrong",
        "rounded",
        "import",
        "cut_off",
        "not_graded",
        "error",
        "lacks",
        "borrowed",
        "misnamed",
        "not_begun",
        "half_begun",
        "race",
        "integrity",
        "limited",
    ],
)
def test_a_person_is_asked_to_look_where_the_grade_may_not_do_justice(graded, why, said):
    assert reasons(graded, why) == said


def test_the_gradebook_has_a_row_for_each_and_no_formulas():
    rows = gradebook([Graded(report(WRONG), ()), Graded(report(UNGRADED, name="=1+1"), ("+x",))], ("ddp", "fsdp"))
    assert rows.splitlines() == [
        "name,points,of,ddp,fsdp,look at",
        "ada,7.5,10,7.5,,",
        "'=1+1,0,10,,,'+x",
    ]


def test_the_class_page_shows_how_the_points_are_spread():
    page = class_page([Graded(report(one), ()) for one in (RIGHT, RIGHT, WRONG, ABSENT)])
    rows = page[page.index("Share of the points") :].partition("</table>")[0].split("<tr>")[1:]
    counts = [re.findall(r'class="number">([^<]*)<', row) + re.findall(r"width: (\d+)%", row) for row in rows]
    assert counts[0] == ["0 to 10 %", "1", "50"]
    assert counts[9] == ["90 to 100 %", "2", "100"]
    assert sum(int(count) for _, count, _ in counts) == 4


def test_the_class_page_groups_similar_failures_and_counts_missed_aspects():
    again = check("overlaps", "failed", diagnosis="Looks like the same mistake as in averages.")
    others = component(WRONG.checks[0], check("sums"), again)
    page = class_page([Graded(report(WRONG), ()), Graded(report(others, name="bob & co"), ("a race",))])
    shared = page[page.index("Similar failures") :]
    assert shared.count("sums instead of averaging") == 1
    assert '2: <a href="ada/report.html">ada</a>, <a href="bob%20%26%20co/report.html">bob &amp; co</a>' in shared
    assert "Looks like" not in shared
    assert "2 of 2" in page[page.index("Aspects that fail most") :]
    assert "A person should look at 1" in page


def test_a_folder_of_results_is_neither_mixed_with_others_nor_overwritten(tmp_path, capsys):
    require_new(tmp_path / "new", resume=False)
    (tmp_path / LOCK).touch()
    require_new(tmp_path, resume=False)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match="holds something else than results; give a new one"):
        require_new(tmp_path, resume=True)
    Results(tmp_path, ("ada",), ("ddp",)).begin(HOW)
    require_new(tmp_path, resume=True)
    with pytest.raises(UsageError, match="add --resume to go on with them"):
        require_new(tmp_path, resume=False)
    (tmp_path / "rubric.toml").touch()
    assert main(["regrade", str(tmp_path / "none"), "--rubric", str(tmp_path / "rubric.toml")]) == 2
    assert main(["regrade", str(tmp_path.parent), "--rubric", str(tmp_path / "rubric.toml")]) == 2
    assert "holds no results of a course: it has no course.json" in capsys.readouterr().err


def test_results_are_never_mixed_with_those_of_another_grade(tmp_path):
    results = Results(tmp_path, ("ada", "bob"), ("ddp",))
    results.begin(HOW)
    before = (tmp_path / "course.json").read_bytes()
    said = r"the seed was '1' and is '2'\. Nothing was changed: repeat the grade as it was, or give another folder"
    with pytest.raises(UsageError, match=said):
        results.begin(HOW | {"the seed": "2"})
    results.record("bob").begin(KEY)
    with pytest.raises(UsageError, match="results of 1 who are not among the submissions: bob"):
        Results(tmp_path, ("ada",), ("ddp",)).begin(HOW)
    assert (tmp_path / "course.json").read_bytes() == before
    remove_tree(tmp_path / "bob")
    Results(tmp_path, ("ada",), ("ddp",)).begin(HOW)
    assert Results.found(tmp_path).names == ("ada",)


def test_the_kept_rubric_adds_no_components_to_those_of_the_last_run(tmp_path):
    Results(tmp_path, ("ada",), ("ddp_bucketed",)).begin(HOW)
    named = Rubric(aspects={"ddp_bucketed": ASPECTS, "fsdp": ASPECTS})
    resumed = {"out": tmp_path, "resume": True, "components": None}
    assert asked_components(Namespace(**resumed, rubric=tmp_path / RUBRIC), named) == ("ddp_bucketed",)
    assert asked_components(Namespace(**resumed, rubric=Path("other.toml")), named) == ("ddp_bucketed", "fsdp")


def test_two_graders_never_write_to_one_folder(tmp_path):
    (tmp_path / "ada.py").touch()
    course = Course(entries(tmp_path), tmp_path / "out", Grading(1, 2, ("naive_ddp",), 1), (), (), 60)

    class Nested(CourseProgress):
        def planned(self, *_):
            with pytest.raises(UsageError, match="another grade writes to this folder"):
                grade_course(course, LocalExecutor(course.grading, 1, print), CourseProgress())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grade_course(course, LocalExecutor(course.grading, 1, print), Nested())


def test_the_folder_of_results_is_no_submission(tmp_path):
    for name in ("ada", "out"):
        (tmp_path / name).mkdir()
    assert entries(tmp_path, None, tmp_path / "out") == [Entry("ada", tmp_path / "ada")]


def test_progress_in_lines_counts_from_where_an_earlier_grade_was_cut_off(capsys):
    progress = CourseProgress()
    progress.planned(10, 2, {"its content": list("abcdef")})
    progress.ended(Graded(report(RIGHT), ()))
    progress.ended(Graded(report(WRONG), ("a race",)))
    assert capsys.readouterr().err.splitlines() == [
        "conformance: 8 of 10 submissions are graded already",
        "conformance: 6 are graded again, because its content changed: a, b, c, d, e, ...",
        "conformance: 9 of 10: ada: 10 of 10 points; about 1 min left",
        "conformance: 10 of 10: ada: 7.5 of 10 points -- look at it: a race; all done",
    ]


def test_progress_on_a_terminal_has_a_line_for_each_that_is_graded_at_the_moment(record):
    console = Console(force_terminal=True, width=80)
    progress = LiveCourseProgress(console)
    progress.planned(3, 3, {})
    progress.began(record)
    progress.began(replace(record, name="bob"))
    progress.ended(Graded(report(RIGHT, name="bob"), ("a race",)))
    with console.capture() as shown:
        console.print(progress)
    first, last = shown.get().splitlines()
    assert first.split() == ["ada", "ddp", "00:00"]
    assert "1 of 3 submissions, look at 1" in last
    assert "about 1 min left" in last


def test_a_report_is_written_with_the_points_of_a_rubric_and_without_the_grade(record):
    write_part(record, RIGHT, replace(RIGHT, name="fsdp"), name="place/of/ada")
    written = record.write(NO_RUBRIC)
    plain = json.loads((record.folder / "report.json").read_text(encoding="utf-8"))
    assert plain["submissions"][0]["submission"] == written.submission == "ada"
    assert (record.folder / "report.html").stat().st_size


def test_a_students_page_says_nothing_of_a_hidden_check(record):
    write_part(record, component(check("averages", "failed", message="off by 3", diagnosis="summed"), check("sums")))
    rules = replace(RULES, hidden=("averages",))
    record.write(Rubric(rules={"ddp": rules}))
    page, plain = ((record.folder / name).read_text(encoding="utf-8") for name in ("report.html", "report.json"))
    assert "off by 3" in plain
    assert not any(said in page for said in ("off by 3", "summed"))
    assert "does not show what this check looks at" in page
    assert "averages</code>" not in page
    assert "<code>a hidden check</code>" in page
    assert "0 of 2.5 points" in page
    assert "ddp: a hidden check failed" in page


def test_a_students_page_says_why_the_submission_was_not_graded(record):
    record.settle("ada.zip cannot be unpacked: it is empty", "tell them")
    assert record.write(NO_RUBRIC).stopped_because == "ada.zip cannot be unpacked: it is empty"
    page = (record.folder / "report.html").read_text(encoding="utf-8")
    assert "ada.zip cannot be unpacked: it is empty." in page
    assert "Every check" not in page
    assert "tell them" not in page


def test_a_page_for_students_names_no_files_of_the_course(record):
    wrong = check("averages", "failed", message="off by 3", script="out/ada/scripts/x.py")
    write_part(record, component(wrong, check("sums")), replace(RIGHT, name="fsdp"))
    record.write(NO_RUBRIC)
    page = (record.folder / "report.html").read_text(encoding="utf-8")
    assert "pytest-ddp-grade . --components ddp" in page
    assert "out/ada/scripts" not in page
    assert "seed" not in page.lower(), "students would grade with it"


def test_a_page_for_students_shows_scripts_that_run_in_their_folder_and_no_others(record):
    scripts = record.folder / "scripts/home/ta/ada"
    scripts.mkdir(parents=True)
    (scripts / "flat.py").write_text(
        "sys.path[:0] = ['/home/ta/ada'] if os.path.exists('/home/ta/ada') else ['.', 'src']\n"
    )
    (scripts / "judge.py").write_text("sys.exit(main(['replay', 'judge.json']))\n")
    wrong = [
        check("averages", "failed", script="elsewhere/results/ada/scripts/home/ta/ada/flat.py"),
        check("sums", "failed", script="elsewhere/results/ada/scripts/home/ta/ada/judge.py"),
    ]
    write_part(record, component(*wrong), replace(RIGHT, name="fsdp"))
    written = record.write(NO_RUBRIC)
    assert written.components[0].checks[0].script == str(scripts / "flat.py"), "the folder of results was moved"
    page = (record.folder / "report.html").read_text(encoding="utf-8")
    assert "sys.path[:0] = [&#39;.&#39;, &#39;src&#39;]\n" in page
    assert page.count("<summary>See it yourself</summary>") == 1
    assert "/home/ta" not in page


def test_the_report_says_how_the_submission_was_isolated(record):
    isolated = replace(report(RIGHT), environment=replace(report().environment, isolation="own user; namespaces"))
    record.next_part().write_text(to_json_text([isolated]), encoding="utf-8")
    write_part(record, replace(RIGHT, name="fsdp"))
    assert record.report().environment.isolation == "own user; namespaces"
    assert not record.report().harness_failed


def test_who_was_graded_without_namespaces_is_counted_at_the_end(capsys):
    weak = replace(report(RIGHT), environment=replace(report().environment, isolation="own user; clean environment"))
    submissions = [Graded(weak, ()), Graded(report(UNGRADED), ())]
    say_without_namespaces(submissions, "auto")
    assert "1 of 2 submissions had no namespaces of their own" in capsys.readouterr().err
    say_without_namespaces(submissions, "none")
    say_without_namespaces([Graded(report(RIGHT), ())], "auto")
    assert not capsys.readouterr().err


def test_more_jobs_than_there_is_memory_for_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=int(9.5e9)))
    monkeypatch.setattr("conformance.commands.course._CGROUP", tmp_path)
    for jobs, small in ((1, False), (5, False), (15, True)):
        say_memory_of(jobs, small=small)
    assert not capsys.readouterr().err
    say_memory_of(6, small=False)
    said = capsys.readouterr().err
    assert "--jobs 6: right submissions take 1.8 GB each, and 9.5 GB are free here" in said
    assert said.endswith("give --jobs 5\n")
    for name, text in {"memory.max": "4000000000\n", "memory.current": "500000000\n"}.items():
        (tmp_path / name).write_text(text, encoding="ascii")
    say_memory_of(3, small=False)
    assert "and 3.5 GB are free here" in capsys.readouterr().err


def test_an_error_of_the_grader_is_told_to_staff_and_not_to_students(record):
    why = "grading ada: an error in the grader, not in the submission:\nTraceback\nKeyError: 1"
    write_part(record, UNGRADED, not_graded_because=why, harness_failed=True)
    assert record.write(NO_RUBRIC).harness_failed
    page = (record.folder / "report.html").read_text(encoding="utf-8")
    assert "ask who runs the grader: it failed" in page
    assert "not the fault of your submission" in page
    assert "KeyError" not in page
    assert "KeyError" in (record.folder / "report.json").read_text(encoding="utf-8")


def test_a_part_without_submissions_has_no_component_at_the_moment(record):
    record.next_part().write_text('{"submissions": []}', encoding="utf-8")
    assert record.current() == ""


def test_a_course_that_was_cut_off_before_it_began_cannot_be_regraded(tmp_path, capsys):
    Results(tmp_path / "out", ("ada",), ("ddp",)).record("ada").begin({})
    Results(tmp_path / "out", ("ada",), ("ddp",)).begin(HOW)
    (tmp_path / "rubric.toml").touch()
    regrade = ["regrade", str(tmp_path / "out"), "--rubric", str(tmp_path / "rubric.toml")]
    assert main(regrade) == 2
    assert "out/ada: the grade was cut off before it began with this" in capsys.readouterr().err
    assert not (tmp_path / "out/rubric.toml").exists(), "nothing is changed"
    (tmp_path / "out/ada").rename(tmp_path / "ada")
    assert main(regrade) == 0
    said = capsys.readouterr()
    assert said.err == "conformance: left out, since their folders are gone: ada\n"
    assert said.out.startswith("0 submissions")
    with Results(tmp_path / "out", (), ()).alone():
        assert main(regrade) == 2
    assert "another grade writes to this folder" in capsys.readouterr().err
