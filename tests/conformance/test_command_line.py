"""`pytest-ddp-grade`: misuse is told in a sentence with exit code 2, before anything expensive."""

import functools
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from bug import right

from conformance.cli import main, resume
from conformance.components.registry import COMPONENTS
from conformance.execution import restart
from conformance.judging.run_check import run_check

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no/such/path"], "no/such/path is no folder, no file and no module that Python can import from here"),
        ([str(EXAMPLES)], "adapters.py is there; a submission is a folder that has one of them"),
        ([str(EXAMPLES / "README.md")], "is no Python file: a submission is a folder, a .py file or a module"),
        (
            [str(EXAMPLES / "correct"), "--components", "nave_ddp"],
            "--components: there is no nave_ddp; choose from naive_ddp",
        ),
        (
            [str(EXAMPLES / "correct"), "--cmponents", "ddp"],
            "--cmponents ddp is not understood; `pytest-ddp-grade --help`",
        ),
        ([str(EXAMPLES / "correct"), "--components", ","], "--components is empty; choose from naive_ddp"),
        ([str(EXAMPLES / "correct"), "--world-size", "0"], "--world-size 0"),
        (
            [str(EXAMPLES / "correct"), "--world-size", "1"],
            "--world-size 1: a single rank has nothing to synchronise; give 2 or more",
        ),
        ([str(EXAMPLES / "correct"), "--world-size", "100000"], "--world-size 100000: this machine runs 2 to"),
        ([str(EXAMPLES / "correct"), "--max-examples", "0"], "--max-examples 0: give 1 or more"),
        ([str(EXAMPLES / "correct"), "--import-seconds", "0"], "--import-seconds 0: give 1 or more"),
    ],
)
def test_misuse_has_exit_code_2_and_a_sentence(capsys, arguments, words):
    assert main(["grade", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_typo_keeps_the_report_of_an_earlier_grade(tmp_path, capsys):
    report = tmp_path / "report.json"
    report.write_text('{"submissions": []}', encoding="utf-8")
    assert main([str(EXAMPLES / "correct"), "--json", str(report), "--components", "nave_ddp"]) == 2
    assert report.read_text(encoding="utf-8") == '{"submissions": []}'
    (tmp_path / "rubric.toml").touch()
    assert main(["regrade", str(report), "--rubric", str(tmp_path / "rubric.toml")]) == 2
    assert f"{report} holds no submission" in capsys.readouterr().err


def test_extended_checks_do_not_fit_a_small_machine(capsys):
    assert main([str(EXAMPLES / "correct"), "--small", "--extended"]) == 2
    assert "--small runs core checks alone: leave out --extended, or --small" in capsys.readouterr().err


def test_the_command_begins_without_torch_and_without_the_judge():
    look = "import conformance.cli, sys; sys.exit(any(one in sys.modules for one in ('torch', 'conformance.oracle')))"
    assert subprocess.run([sys.executable, "-c", look], check=False).returncode == 0


def test_the_help_names_every_option_with_its_default(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["grade", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for line in (
        "--world-size N ranks in the largest world (4)",
        "--json FILE write the report as JSON",
        "--max-examples N scenarios per check (10)",
        "--repro-dir DIR folder for scripts of failures (repro)",
    ):
        assert line in said


@pytest.mark.parametrize(
    ("adapters", "words"),
    [
        ("x = 1", "define none of the components asked for; looked for get_naive_ddp(module)"),
        (
            "def get_naive_ddp(module): ...",
            "none of the components asked for; naive_ddp lacks naive_ddp_on_after_backward(ddp_model, optimizer)",
        ),
        ("import helpers_that_are_not_there", "No module named 'helpers_that_are_not_there'"),
        ("def broken(:", "SyntaxError"),
        ("raise ValueError('at import')", "ValueError: at import"),
        ("import os; os._exit(0)", "line 1, in <module>\n    import os; os._exit(0)\n"),
        ("import os; os._exit(0)", "SystemExit: os._exit(0) ends the process"),
    ],
)
@pytest.mark.usefixtures("one_server")
def test_adapters_that_cannot_be_used_have_exit_code_2(capsys, submit, adapters, words):
    assert main(["grade", str(submit(adapters)), "--world-size", "2"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "conformance/" not in said.replace("test_adapters", ""), "only the submission's own files"


def test_a_function_that_cannot_be_called_costs_its_component_alone(grade_path, submit):
    wrong = "def get_naive_ddp(): ...\ndef naive_ddp_on_after_backward(m, o): ...\n"
    model = right("overhead_model")["adapters"]
    report = grade_path(submit(wrong + model), components=["naive_ddp", "overhead_model"], world_size=2, examples=1)
    naive, overhead = report.components
    assert (naive.status, naive.points, overhead.status) == ("failed", 0, "passed")
    said = "get_naive_ddp has the signature get_naive_ddp(); it is called as get_naive_ddp(module)"
    assert (naive.checks[0].id, naive.checks[0].message[: len(said)]) == ("can_be_called", said)
    assert {check.status for check in naive.checks[1:]} == {"not_run"}


@pytest.mark.usefixtures("one_server")
def test_an_import_that_does_not_end_is_stopped_and_its_line_is_told(capsys, submit):
    assert main([str(submit("x = 1\nwhile x:\n    pass")), "--import-seconds", "1"]) == 2
    said = capsys.readouterr().err
    assert "importing them did not end within 1 s; --import-seconds N allows more" in said
    assert re.search(r'adapters.py", line [23] in <module>', said), said


@pytest.mark.usefixtures("one_server")
def test_where_nothing_is_submitted_the_exit_code_is_2(submit):
    loop = "def get_naive_ddp(module): raise NotImplementedError\ndef naive_ddp_on_after_backward(m, o): ..."
    assert main([str(submit(loop)), "--world-size", "2"]) == 2


def test_an_error_in_the_grader_itself_has_exit_code_3(capsys, monkeypatch):
    def no_servers(*_, **__):
        raise RuntimeError("a fault of the harness")

    monkeypatch.setattr("conformance.commands.grade.fork_servers", no_servers)
    assert main(["grade", str(EXAMPLES / "correct")]) == 3
    said = capsys.readouterr().err
    assert said.startswith("conformance: an error in the grader, not in the submission:\nTraceback")
    assert "RuntimeError: a fault of the harness" in said


@pytest.mark.usefixtures("one_server")
@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [(KeyboardInterrupt, 130, "conformance: interrupted"), (OSError, 3, "an error in the grader")],
)
def test_what_happens_while_ranks_start_has_its_exit_code(capsys, monkeypatch, raised, code, said):
    def begin_ahead(**_):
        raise raised

    monkeypatch.setattr(restart, "begin_ahead", begin_ahead)
    assert resume(0, small=False) == code
    assert said in capsys.readouterr().err


def test_an_interrupted_grade_leaves_a_report_of_what_was_finished(capsys, tmp_path, monkeypatch):
    def interrupted(component, check, *others, **options):
        if check is COMPONENTS["overhead_model"].checks[1]:
            raise KeyboardInterrupt
        return run_check(component, check, *others, **options)

    monkeypatch.setattr("conformance.grading.grade.run_check", interrupted)
    out = tmp_path / "report.json"
    asked = ["--components", "loader_generator,overhead_model", "--max-examples", "1", "--json", str(out)]
    assert main(["grade", "reference.adapters", "no/such/path", *asked, "--repro-dir", str(tmp_path)]) == 130
    assert "conformance: interrupted" in capsys.readouterr().err
    begun, never_begun = json.loads(out.read_text())["submissions"]
    assert (begun["finished"], never_begun["finished"]) == (False, False)
    assert begun["components"]["loader_generator"]["status"] == "passed"
    broken_off = begun["components"]["overhead_model"]
    assert broken_off["status"] == "not_graded"
    assert [check["status"] for check in broken_off["checks"]][:2] == ["passed", "not_run"]
    assert 0 < broken_off["points"] < broken_off["max_points"]


def test_a_path_without_adapters_has_a_report_of_the_same_shape(capsys, tmp_path):
    out = tmp_path / "report.json"
    assert main(["grade", "no/such/path", "--json", str(out)]) == 2
    (report,) = json.loads(out.read_text())["submissions"]
    assert report["finished"]
    assert f"conformance: {report['not_graded_because']}" in capsys.readouterr().err
    assert {component["status"] for component in report["components"].values()} == {"not_graded"}


@pytest.mark.usefixtures("one_server")
def test_adapters_without_a_component_have_a_report_of_the_same_shape(submit, tmp_path):
    out = tmp_path / "report.json"
    assert main(["grade", str(submit("")), "--world-size", "2", "--json", str(out)]) == 2
    (report,) = json.loads(out.read_text())["submissions"]
    assert report["finished"]
    assert "define none of the components asked for" in report["not_graded_because"]
    assert {component["status"] for component in report["components"].values()} == {"not_graded"}


def test_a_report_that_cannot_be_written_is_misuse(capsys, tmp_path):
    assert main(["grade", str(EXAMPLES / "correct"), "--json", str(tmp_path)]) == 2
    assert f"conformance: --json {tmp_path}: Is a directory" in capsys.readouterr().err


@pytest.fixture
def as_tests(pytester, launcher, monkeypatch):
    """Run the suite as tests in this process, on ranks from the session's fork servers."""
    monkeypatch.setattr("conformance.test_submission.fork_servers", lambda: nullcontext(launcher))
    return functools.partial(pytester.runpytest_inprocess, "--pyargs", "conformance", "-p", "no:cacheprovider", "-q")


def test_the_same_suite_runs_as_tests(as_tests, first_failed, monkeypatch):
    monkeypatch.setenv("PYTEST_DDP_SEED", "7")
    submission = f"--ddp-submission={EXAMPLES / 'summed_gradients'}"
    run = as_tests("-rxf", submission, "--ddp-world-size=2", "-k", "runs_to or averaged")
    assert run.ret == 1
    said = run.stdout.str()
    assert "summed, not averaged" in said
    assert "FAILED" in said
    assert "test_submission[naive_ddp-gradients_averaged]" in said
    assert "To repeat it: --ddp-seed=7." in said
    command = f"{EXAMPLES / 'summed_gradients'} --components naive_ddp --world-size 2 --seed 7"
    assert f"For a script without this suite: pytest-ddp-grade {command}" in said
    graded = first_failed(EXAMPLES / "summed_gradients", "naive_ddp", seed=7, world_size=2)
    assert graded.id == "gradients_averaged"
    assert graded.message in said, "`grade --seed 7` has seen the same"
    assert repr(graded.scenario) in said


@pytest.mark.long
def test_the_whole_suite_runs_as_tests_in_a_process_of_its_own(tmp_path):
    command = [sys.executable, "-m", "pytest", "--pyargs", "conformance", "-p", "no:cacheprovider", "-q"]
    submission = [f"--ddp-submission={EXAMPLES / 'summed_gradients'}", "--ddp-world-size=2"]
    run = subprocess.run([*command, *submission], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "summed, not averaged" in run.stdout


SAMPLER = "from torch.utils.data import DistributedSampler as get_distributed_sampler\n"


@pytest.mark.usefixtures("one_server")
def test_torchs_own_is_told_and_forbidden_on_demand(capsys, submit, tmp_path):
    command = ["grade", str(submit(SAMPLER)), "--max-examples", "1", "--repro-dir", str(tmp_path)]
    main(command)
    said = " ".join(capsys.readouterr().out.split())
    assert "Torch's own: distributed_sampler uses torch.utils.data.DistributedSampler" in said
    assert main([*command, "--from-scratch"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "distributed_sampler uses torch.utils.data.DistributedSampler, so its other checks did not run" in said


@pytest.mark.usefixtures("one_server")
def test_core_checks_alone_give_the_same_points(capsys, submit, tmp_path):
    path, out = submit(SAMPLER), tmp_path / "report.json"
    command = ["grade", str(path), "--max-examples", "1", "--json", str(out), "--repro-dir", str(tmp_path)]
    graded = {}
    for option in ([], ["--core"]):
        assert main([*command, *option]) == 0
        (report,) = json.loads(out.read_text())["submissions"]
        part = report["components"]["distributed_sampler"]
        graded[report["environment"]["core_only"]] = (part["points"], part["max_points"])
        assert ({check["level"] for check in part["checks"]} == {"core"}) is bool(option)
    assert graded[True] == graded[False]
    assert "core checks only" in " ".join(capsys.readouterr().out.split())


def test_no_core_check_waits_for_an_extended_one():
    for checks in [one.checks for one in COMPONENTS.values()]:
        core = [check for check in checks if check.level == "core"]
        assert {required for check in core for required in check.requires} <= {check.id for check in core}


def test_the_suite_as_tests_forbids_it_too_and_says_why_another_is_skipped(as_tests, submit):
    submission = f"--ddp-submission={submit(SAMPLER + 'def get_flat_ddp(module): ...')}"
    run = as_tests("-rs", submission, "--ddp-from-scratch", "--ddp-world-size=2", "-k", "flat or sampler")
    assert run.ret == 1
    said = run.stdout.str()
    assert "distributed_sampler uses torch.utils.data.DistributedSampler" in said
    assert "not submitted: flat_ddp lacks flat_ddp_on_after_backward(ddp_model, optimizer)" in said


@pytest.mark.parametrize(
    ("adapters", "options", "words"),
    [
        ("x = 1", ["--ddp-world-size=1"], "a single rank has nothing to synchronise; give 2 or more"),
        ("x = 1", [], "define none of the components asked for"),
    ],
)
def test_misuse_stops_the_tests(as_tests, submit, adapters, options, words):
    run = as_tests(f"--ddp-submission={submit(adapters)}", *options, "-k", "overhead")
    assert run.ret == 2, "as of the command line"
    assert words in run.stdout.str() + run.stderr.str()


def test_without_a_submission_the_tests_are_skipped(as_tests):
    run = as_tests("-rs", "-k", "overhead")
    assert run.ret == pytest.ExitCode.OK
    assert "give --ddp-submission=PATH" in run.stdout.str()


def test_a_wrong_path_stops_the_tests_at_once(tmp_path):
    command = [sys.executable, "-m", "pytest", "--pyargs", "conformance", "--ddp-submission=nowhere"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--ddp-submission: nowhere is no folder" in run.stderr
