"""The script that a failure under `conformance.verify` leaves behind, and where it is."""

import ast
import os
import re
import subprocess
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.components.registry import COMPONENTS
from conformance.judging.draws import Draws
from conformance.library import scripts
from conformance.library.suite import Functions
from conformance.reproduction.files import flat_text
from conformance.reproduction.script import Failure, lines_besides_data
from conformance.scenarios.scenario import Scenario
from conformance.strategies import Bounds
from conformance.submissions.library import Library, Named

AVERAGED, WAITS = "ddp-gradients_averaged", "ddp-results_are_waited_for"
REPRO = "--conformance-repro=repro"
SUITE = "test_mylib/test_conformance"
NO_WAIT = """
import torch.distributed as dist
from mylib import Wrapped

def forgets(wrapped, optimizer):
    for p in wrapped.parameters():
        p.grad /= dist.get_world_size()
        dist.all_reduce(p.grad, async_op=True)
"""
ENGINE = """
import torch.distributed as dist

class Engine:
    def __init__(self, module, optimizer_cls, **options):
        self.module = module
        for p in module.parameters():
            dist.broadcast(p.data, src=0)
        self.optimizer = optimizer_cls(module.parameters(), **options)

    def __call__(self, *inputs, **options):
        return self.module(*inputs, **options)

    def backward(self, loss):
        loss.backward()

    def step(self):
        for p in self.module.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= FACTOR
        self.optimizer.step()
        self.optimizer.zero_grad()

    def full_parameters(self):
        return dict(self.module.named_parameters())
"""


def run(script: Path, folder: Path) -> tuple[int, str]:
    """Run a script as a maintainer would, in another folder than that of the tests."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    command = [sys.executable, str(script)]
    ran = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=False, timeout=200)
    return ran.returncode, ran.stdout + ran.stderr


def test_a_failure_has_a_script_that_shows_it_until_the_library_is_right(run_library, pytester, tmp_path):
    said = run_library(REPRO, "-k", AVERAGED, after_backward="mylib:summed").stdout.str()
    script = pytester.path / "repro" / SUITE / f"{AVERAGED}.py"
    assert f"See it yourself: python repro/{SUITE}/{AVERAGED}.py\nTo repeat it: pytest " in said
    assert f"Scripts that show failures: 1, in repro/{SUITE}\n" in said
    text = script.read_text()
    assert "from mylib import Wrapped as wrap\nfrom mylib import summed as after_backward\n" in text
    assert not re.search("import .*(pytest|conformance)", text)
    assert lines_besides_data(text) <= 60
    code, shown = run(script, tmp_path)
    assert (code, "rank 0, step 1, gradient of layers.0.weight: [[" in shown) == (1, True), shown
    library = pytester.path / "mylib.py"
    library.write_text(library.read_text() + "\nsummed = average\n")
    assert run(script, tmp_path) == (0, "nothing differs\n")


def test_a_failure_that_plain_torch_does_not_show_is_replayed(run_library, pytester, tmp_path, launcher, monkeypatch):
    pytester.makepyfile(forgetful=NO_WAIT)
    run_library(REPRO, "-k", WAITS, after_backward="forgetful:forgets")
    script = pytester.path / "repro" / SUITE / f"{WAITS}.py"
    assert "It is shown by the judge, not by plain torch: a short script has no lines for gated." in script.read_text()
    code, shown = run(script, tmp_path)
    assert (code, "ddp: results_are_waited_for  failed" in shown, "`after_backward`" in shown) == (1, True, True), shown
    module = pytester.path / "forgetful.py"
    module.write_text(module.read_text() + "\nfrom mylib import average as forgets\n")
    monkeypatch.setattr("conformance.commands.replay.fork_servers", lambda _: nullcontext(launcher))
    with redirect_stdout(StringIO()) as said:
        assert main(["replay", str(script.with_suffix(".json"))]) == 0
    assert said.getvalue() == "ddp: results_are_waited_for  passed\n"


def test_an_engine_has_a_script_without_the_judge(run_library, pytester, tmp_path):
    module = pytester.makepyfile(myengine=ENGINE.replace("FACTOR", "1"))
    check = "engine-training_equals_one_process"
    run_library(REPRO, "-k", check, wrap=None, after_backward=None, engine="myengine:Engine")
    script = pytester.path / "repro" / SUITE / f"{check}.py"
    assert "from myengine import Engine as engine\n" in script.read_text()
    code, shown = run(script, tmp_path)
    assert (code, "rank 0, step 1, layers.0.weight: [[" in shown) == (1, True), shown
    module.write_text(ENGINE.replace("FACTOR", "dist.get_world_size()"))
    assert run(script, tmp_path) == (0, "nothing differs\n")


def test_scripts_are_in_the_cache_of_pytest_unless_a_folder_is_named(run_library, pytester):
    known = "ddp gradients_averaged it sums\n"
    run = run_library("-p", "cacheprovider", "-k", AVERAGED, after_backward="mylib:summed", known=known)
    assert run.parseoutcomes()["xfailed"] == 1
    folder = f".pytest_cache/d/conformance/{SUITE}"
    assert f"Scripts that show failures: 1, in {folder}\n" in run.stdout.str()
    assert sorted(path.name for path in (pytester.path / folder).iterdir()) == [f"{AVERAGED}.json", f"{AVERAGED}.py"]


NO_CACHE = ("-p", "cacheprovider", "-o", "cache_dir=mylib.py", "-W", "ignore::pytest.PytestCacheWarning")


@pytest.mark.parametrize("options", [(), NO_CACHE], ids=["off", "a_file_is_in_its_place"])
def test_without_a_cache_the_report_says_how_to_get_a_script(run_library, pytester, options):
    said = run_library(*options, "-k", AVERAGED, after_backward="mylib:summed").stdout.str()
    assert f"{scripts.NO_FOLDER}\nTo repeat it: pytest " in said
    assert sorted(path.name for path in pytester.path.rglob("*.py")) == ["mylib.py", "test_mylib.py"]


@pytest.mark.parametrize("given", [{}, {"wrap": "mylib:Missing"}, {"wrap": "mylib:average"}])
def test_scripts_of_an_earlier_run_of_the_same_item_are_removed_and_no_others(run_library, pytester, given):
    folder = pytester.path / "repro" / SUITE
    folder.mkdir(parents=True)
    names = [f"{AVERAGED}.json", f"{AVERAGED}.py", "ddp-no_sync.py", "mine.py"]
    for name in names:
        (folder / name).write_text("")
    run_library(REPRO, "-k", AVERAGED, **given)
    assert sorted(path.name for path in folder.iterdir()) == names[2:]


def test_a_method_is_imported_with_its_class_and_a_function_that_is_not_given_is_not_called():
    named = Named("wrap", "mylib.ddp", "Wrapper.make")
    library = Library({"get_ddp": named, "ddp_on_after_backward": None}, ("/a folder",))
    ddp = COMPONENTS["ddp"]
    text, why = flat_text(Failure(source=library, component=ddp, check=ddp.checks[0], message=""), Scenario(), 7)
    assert not why
    assert "sys.path[:0] = ['/a folder']\nfrom mylib.ddp import Wrapper as wrap\nwrap = wrap.make\n" in text
    assert "ours = train(wrap(Model(rank)), [rank])\n" in text
    assert list(Named("wrap", "mylib", "wrap").statements) == ["from mylib import wrap"]


@pytest.mark.parametrize(
    ("component", "call"),
    [
        ("ddp", "train(wrap(Model(rank)), [rank], after_backward)"),
        ("sharded_optimizer", "train(Model(0), [0], sharded)"),
        ("both", "train(wrap(Model(rank)), [rank], after_backward, make=sharded)"),
        ("fsdp", "train(wrapped, [rank], full_parameters, after_backward)"),
        ("engine", "train(engine, Model(rank), [rank])"),
    ],
)
def test_a_script_calls_the_functions_by_their_roles(component, call):
    roles = ("wrap", "after_backward", "sharded", "fsdp", "full_parameters", "engine")
    functions = Functions(**{role: f"json:{role}" for role in roles}).adapters(Path(__file__))
    one = COMPONENTS[component]
    of_ddp = [each for each in one.contract.alternatives if each.wrapper and each.wrapper.name == "ddp"]
    one = replace(one, contract=(*of_ddp, one.contract)[0])
    failure = Failure(source=Library(functions, ()), component=one, check=one.checks[0], message="")
    texts = [flat_text(failure, drawn, 7)[0] for check in one.checks[:8] for drawn in drawn_of(check)]
    assert any(call in text for text in texts)
    for text in texts:
        ast.parse(text)
        assert "adapters" not in text


def drawn_of(check):
    return Draws(check.scenarios, check.rules_out, Bounds(2), 1, "secret", 1).all()


def test_a_library_survives_the_trip_through_a_case_that_is_saved():
    functions = {"get_ddp": Named("wrap", "mylib", "Wrapped"), "ddp_on_after_backward": None}
    library = Library(functions, ("/a",), ("fairscale",))
    assert Library.from_json(library.to_json()) == library


def test_messages_call_functions_as_verify_does():
    library = Library({"get_ddp": Named("wrap", "mylib", "Wrapped"), "ddp_on_after_backward": None}, ())
    assert library.renamed("get_ddp(module) raised, forget_ddp did not.") == "wrap(module) raised, forget_ddp did not."
    assert library.renamed("After `on_after_backward`, ...") == "After `after_backward`, ..."


def test_folders_that_every_python_has_are_not_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    beside = tmp_path / "tests"
    beside.mkdir()
    folders = Library.here({}, beside / "test_mylib.py", ()).folders
    assert {str(tmp_path), str(beside)} <= set(folders)
    assert not [folder for folder in folders if folder.endswith(("site-packages", "lib-dynload", ".zip"))]
