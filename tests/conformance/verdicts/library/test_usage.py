"""Mistakes in a call of `conformance.verify`: each is an error at collection, in a sentence."""

import subprocess
import sys

import pytest

import conformance
from conformance import Claims
from conformance.library.suite import Functions, Suite
from conformance.submissions.library import Named
from pytest_ddp.errors import UsageError


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"wrap": None, "after_backward": None},
            "verify: give it a function of your library: wrap=, sharded=",
        ),
        (
            {"fsdp": "mylib:Wrapped"},
            "verify: fsdp= also needs full_parameters=, (wrapped) -> a dict of whole",
        ),
        ({"full_parameters": "mylib:average"}, "verify: full_parameters= is for fsdp=, which is not given"),
        (
            {"wrap": None, "sharded": "mylib:average"},
            "verify: after_backward= is for wrap= or fsdp=, and neither is given",
        ),
        ({"wrap": "mylib.Wrapped"}, 'wrap=\'mylib.Wrapped\': expected "module:function", as in "mylib.ddp:wrap"'),
        ({"wrap": "no_such_module:wrap"}, "wrap=no_such_module:wrap: there is no module `no_such_module`"),
        ({"claims": Claims(lossy=2.0)}, "Claims(lossy=2.0): give a share from 0 to 1, as 1e-2"),
    ],
)
def test_a_mistake_is_an_error_at_collection(run_library, given, words):
    run = run_library("--collect-only", **given)
    assert run.ret == pytest.ExitCode.INTERRUPTED
    assert words in run.stdout.str()
    assert "Traceback" not in run.stdout.str()


def test_functions_are_found_by_their_module_and_name(tmp_path):
    assert Named.of("wrap", Suite, tmp_path) == Named("wrap", "conformance.library.suite", "Suite")
    assert Named.of("wrap", "mylib.ddp:Wrapper.make", tmp_path) == Named("wrap", "mylib.ddp", "Wrapper.make")
    assert Named("wrap", "mylib.ddp", "wrap").package == "mylib"
    assert Named("wrap", "torch.nn.parallel", "DistributedDataParallel").package == "torch.nn.parallel"


def test_a_function_without_a_name_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"ranks import functions by name, and this one has none. Define a function"):
        Named.of("wrap", lambda module: module, tmp_path)


def test_a_function_of_the_test_file_is_refused(pytester):
    pytester.makepyfile(
        """
        import conformance

        def wrap(module):
            return module

        test_conformance = conformance.verify(wrap=wrap)
        """
    )
    run = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--collect-only")
    said = "wrap=wrap: ranks import its module, and must not import a module that uses `conformance`. Move it from "
    assert f"{said}test_a_function_of_the_test_file_is_refused.py to a module of its own." in run.stdout.str()


def test_what_most_runs_import_imports_neither_torch_nor_hypothesis():
    blocked = "import sys; sys.modules.update({'torch': None, 'hypothesis': None})"
    imports = "import conformance, conformance.pytest_plugin, conformance.library.ci; print(conformance.Claims())"
    command = [sys.executable, "-c", f"{blocked}; {imports}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("Claims(dtypes=")


def test_there_is_nothing_else_in_the_package():
    with pytest.raises(AttributeError, match="module 'conformance' has no attribute 'verifies'"):
        conformance.verifies  # noqa: B018


def test_components_follow_from_the_functions():
    wrap, sharded = {"wrap": "mylib:wrap"}, {"sharded": "mylib:make"}
    assert list(Functions(**wrap).components) == ["ddp"]
    assert list(Functions(**wrap, **sharded).components) == ["ddp", "sharded_optimizer", "both"]
    assert list(Functions(**wrap, **sharded, both=False).components) == ["ddp", "sharded_optimizer"]
    assert list(Functions(fsdp="mylib:shard", full_parameters="mylib:full").components) == ["fsdp"]
