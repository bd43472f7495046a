"""If a rank cannot find a test, the report says why."""


def test_a_conftest_that_fails_on_a_rank_is_reported(run_suite):
    result = run_suite(
        "@distributed\ndef test_it(): pass",
        conftest="""
def pytest_configure(config):
    if config.pluginmanager.has_plugin("ddp-rank"):
        raise RuntimeError("not on my ranks")
""",
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["rank 0 could not start:*", "*RuntimeError: not on my ranks*"])


def test_failures_while_a_rank_collects_are_reported(run_suite, pytester):
    for folder, name, line in (
        ("own", "test_module", "raise ValueError('not here')"),
        ("absent", "test_import", "import not_there"),
        ("above", "conftest", "raise KeyError('nor here')"),
        ("skipped", "test_skipped", "pytest.skip('only once', allow_module_level=True)"),
    ):
        path = pytester.mkdir(folder)
        (path / f"{name}.py").write_text(
            "import pathlib, pytest\nfrom pytest_ddp import distributed\n"
            "seen = pathlib.Path(__file__).with_suffix('.seen')\n"
            f"if seen.exists(): {line}\nseen.touch()\n"
            "@distributed(world_size=1)\ndef test_one(): pass\n@distributed(world_size=1)\ndef test_two(): pass"
        )
    (pytester.path / "above" / "test_below.py").write_text(
        "from pytest_ddp import distributed\n@distributed(world_size=1)\ndef test_it(): pass"
    )
    result = run_suite("@distributed(world_size=1)\ndef test_here(): pass", "-rs", "--import-mode=importlib")
    result.assert_outcomes(passed=1, errors=5, skipped=2)
    result.stdout.fnmatch_lines(
        [
            "rank 0 of 1 (gloo, cpu) raised KeyError: 'nor here'",
            "E   KeyError: 'nor here'",
            "rank 0 of 1 (gloo, cpu) raised ModuleNotFoundError: No module named 'not_there'",
            "rank 0 of 1 (gloo, cpu) raised ValueError: not here",
            "*test_module.py:4: in <module>",
            "SKIPPED [[]2[]] *only once",
        ]
    )


def test_a_test_that_ranks_do_not_find_is_reported(run_suite):
    result = run_suite("""
        @pytest.mark.parametrize("value", [os.getpid()])
        @distributed
        def test_it(value): pass
        """)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*this rank does not find test_suite.py::test_it[[]*tests must be collected alike*"])


def test_a_file_of_an_unusual_name_shows_the_values_of_a_failed_assertion(pytester):
    file = pytester.makepyfile(
        unusual="""
        from pytest_ddp import distributed

        @distributed(world_size=1)
        def test_it():
            one, two = 1, 2
            assert one == two
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", file)
    result.stdout.fnmatch_lines(["rank 0 of 1 (gloo, cpu) raised AssertionError: assert 1 == 2"])
