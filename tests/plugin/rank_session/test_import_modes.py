"""One project, run in every way in which pytest imports tests: ranks import what the controller imports."""

import textwrap

import pytest

PROJECT = {
    "pyproject.toml": """
        [tool.pytest.ini_options]
        pythonpath = ["src"]
        """,
    "src/shop/__init__.py": """
        def price(number):
            return 2 * number
        """,
    "conftest.py": """
        import pytest

        @pytest.fixture
        def levels():
            return ["root"]
        """,
    "checks/__init__.py": "",
    "checks/conftest.py": """
        import pytest

        TIMES = []

        @pytest.fixture
        def levels(levels):
            return [*levels, "checks"]

        @pytest.fixture(scope="package")
        def times():
            TIMES.append("made")
            return TIMES
        """,
    "checks/helpers.py": """
        def plus_one(rank):
            return rank + 1
        """,
    "checks/near/__init__.py": "",
    "checks/near/conftest.py": """
        import pytest

        @pytest.fixture
        def levels(levels):
            return [*levels, "near"]
        """,
    "checks/near/test_same.py": """
        from dataclasses import dataclass
        from functools import partial
        import torch.distributed as dist
        from pytest_ddp import distributed
        from shop import price
        from ..helpers import plus_one

        @dataclass
        class Box:
            number: int

        def work(box):
            return Box(plus_one(price(box.number)) + dist.get_rank())

        @distributed
        def test_rank(ddp, levels, times):
            assert levels == ["root", "checks", "near"]
            assert times == ["made"]
            assert plus_one(ddp.rank) == ddp.rank + 1

        def test_called(ddp_ranks):
            assert ddp_ranks(world_size=2).run(work, Box(1)) == [Box(3), Box(4)]
            assert ddp_ranks(world_size=2).run(partial(work, Box(2))) == [Box(5), Box(6)]
        """,
    "checks/far/__init__.py": "",
    "checks/far/test_same.py": """
        import torch.distributed as dist
        from pytest_ddp import distributed
        from checks.helpers import plus_one

        def work():
            return plus_one(dist.get_rank())

        @distributed
        def test_rank(ddp, levels, times):
            assert levels == ["root", "checks"]
            assert times == ["made"]

        def test_called(ddp_ranks):
            assert ddp_ranks(world_size=2).run(work) == [1, 2]
        """,
    "loose/beside.py": """
        def tenfold(rank):
            return 10 * rank
        """,
    "loose/test_beside.py": """
        import torch.distributed as dist
        from beside import tenfold
        from pytest_ddp import distributed

        def work():
            return tenfold(dist.get_rank())

        @distributed
        def test_rank(ddp, levels):
            assert levels == ["root"]
            assert tenfold(ddp.rank) == 10 * ddp.rank

        def test_called(ddp_ranks):
            assert ddp_ranks(world_size=2).run(work) == [0, 10]
            assert ddp_ranks(world_size=2).run(tenfold, 4) == [40, 40]
        """,
    "scattered/one/test_twin.py": """
        import torch.distributed as dist
        from pytest_ddp import distributed
        from shop import price

        @distributed
        def test_rank(ddp, levels): assert levels == ["root"]

        def work(): return price(dist.get_rank())

        def test_called(ddp_ranks): assert ddp_ranks(world_size=2).run(work) == [0, 2]
        """,
    "scattered/two/test_twin.py": """
        import torch.distributed as dist
        from pytest_ddp import distributed

        @distributed
        def test_rank(ddp, levels): assert levels == ["root"]

        def work(): return "two"

        def test_called(ddp_ranks): assert ddp_ranks(world_size=2).run(work) == ["two", "two"]
        """,
}
FOLDERS = {
    "prepend": ("checks", "loose", "scattered/one"),  # cannot import two modules of one name
    "append": ("checks", "loose", "scattered/two"),
    "importlib": ("checks", "scattered"),  # cannot import modules beside a test
}


@pytest.fixture
def project(pytester):
    """Write the project and go to its folder; return the folder."""
    for name, text in PROJECT.items():
        file = pytester.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return pytester.path


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("command", "mode"),
    [("pytest", "prepend"), ("pytest", "importlib"), ("python -m pytest", "append"), ("python -m pytest", "importlib")],
)
def test_ranks_import_as_the_controller_does(pytester, command, mode):
    if command == "python -m pytest":
        pytester.syspathinsert()  # the difference: the current folder is on the path
    result = pytester.runpytest_inprocess(f"--import-mode={mode}", *FOLDERS[mode])
    result.assert_outcomes(passed=8)


@pytest.mark.usefixtures("project")
def test_functions_are_sent_under_importlib_to_ranks_that_have_imported_nothing(pytester):
    result = pytester.runpytest_inprocess("--import-mode=importlib", "--noconftest", "-k", "called", "checks")
    result.assert_outcomes(passed=2, deselected=2)


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_the_rootdir_may_be_another_folder_than_the_current_one(project, pytester, monkeypatch, mode):
    elsewhere = pytester.mkdir("elsewhere")
    monkeypatch.chdir(elsewhere)
    options = (f"--rootdir={project}", f"--config-file={project / 'pyproject.toml'}", f"--import-mode={mode}")
    pytester.runpytest_inprocess(*options, "../checks", "../scattered/one").assert_outcomes(passed=6)


def test_a_test_is_chosen_by_its_id_from_a_folder_below(project, pytester, monkeypatch):
    monkeypatch.chdir(project / "checks" / "far")
    pytester.runpytest_inprocess("../near/test_same.py::test_rank", "test_same.py").assert_outcomes(passed=3)


@pytest.mark.parametrize(("current", "arguments"), [(".", []), ("the [new]", ["."])], ids=["above", "inside"])
def test_folders_may_have_names_that_pytest_takes_for_parameters(pytester, monkeypatch, current, arguments):
    folder = pytester.path / "the [new]" / "far [off]" / "odd::names"
    folder.mkdir(parents=True)
    (folder / "conftest.py").write_text("import pytest\n@pytest.fixture(scope='package')\ndef far(): return []")
    for name, seen in (("one", []), ("two", [1])):
        (folder / f"test_{name}.py").write_text(
            "from pytest_ddp import distributed\n@distributed(world_size=2)\n"
            f"def test_{name}(far):\n    assert far == {seen}\n    far.append(1)"
        )
    beside = folder.parent / "test_beside.py"
    beside.write_text("with open(__file__ + '.read', 'a') as file: file.write('once')")
    monkeypatch.chdir(pytester.path / current)
    pytester.runpytest_inprocess(*arguments).assert_outcomes(passed=2)
    assert (folder.parent / "test_beside.py.read").read_text() == "once"  # by the controller
