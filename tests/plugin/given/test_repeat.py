"""`@distributed` with `@given`, once more: blobs, the example database and seeds repeat what was drawn."""

import re

import pytest


def test_a_printed_blob_reproduces_the_failure(run_given):
    suite = """
        from hypothesis import reproduce_failure

        {}
        @distributed
        @given(x=st.integers())
        @settings(fast, phases=[Phase.generate], print_blob=True)
        def test_blob(ddp, x): assert x < 10**6
        """
    found = run_given(suite.format(""))
    (blob,) = re.findall(r"@reproduce_failure\(.*\)", found.stdout.str())
    (x,) = re.findall(r"assert (\d+) < ", found.stdout.str())[:1]
    again = run_given(suite.format(blob))
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines([f"E *assert {x} < *"])


def test_the_database_replays_a_failing_example_first(run_given, pytester, monkeypatch):
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", str(pytester.path / "storage"))
    suite = """
        @distributed
        @given(x=st.integers())
        @settings(deadline=None)
        def test_it(ddp, x):
            note(f"ran {{x}}")
            assert {condition}
        """
    run_given(suite.format(condition="x < 777")).assert_outcomes(failed=1)
    again = run_given(suite.format(condition="x < 777"), "--hypothesis-show-statistics")
    again.stdout.fnmatch_lines(["E *x=777,", "*during reuse phase*", "* 1 failing*"])


@pytest.mark.parametrize(("decorator", "options"), [("", ["--hypothesis-seed=3"]), ("@seed(3)", [])])
def test_a_seed_makes_runs_alike(run_given, tmp_path, decorator, options):
    def drawn(name, decorator, *options):
        suite = f"""
            @distributed
            {decorator}
            @given(x=st.integers())
            @settings(deadline=None, database=None, phases=[Phase.generate])
            def test_it(ddp, x):
                if ddp.rank == 1:
                    print(x, file=open({str(tmp_path / name)!r}, "a"))
            """
        run_given(suite, *options).assert_outcomes(passed=1)
        return (tmp_path / name).read_text().splitlines()

    other = drawn("other", "")  # first of all: an inner run's --hypothesis-seed holds for those that follow
    first, again = drawn("first", decorator, *options), drawn("again", decorator, *options)
    assert first == again != other
    assert len(first) > 20
