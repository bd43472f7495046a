"""Globals of the user's modules on simulated ranks: kept for each rank where possible; else a warning names them."""

import pytest

from pytest_ddp.rank_session.shared_globals import globals_assigned

SIMULATED = ("--ddp-backend=sim", "--ddp-world-size=3")


def test_a_global_that_a_function_assigns_is_kept_for_each_rank(run_suite):
    result = run_suite(
        """
        STEP, RANK = 0, None

        def my_rank():
            global RANK
            if RANK is None:
                RANK = dist.get_rank()
            return RANK

        @distributed
        class TestRanks:
            def test_first(self, ddp):
                global STEP, NEW
                STEP += 1
                NEW = ddp.rank
                dist.barrier()
                STEP += ddp.rank
                assert (my_rank(), STEP, NEW) == (ddp.rank, 1 + ddp.rank, ddp.rank)

            def test_second(self, ddp):
                dist.barrier()
                assert (my_rank(), STEP, NEW) == (ddp.rank, 1 + ddp.rank, ddp.rank)

        def test_plain():
            assert (STEP, RANK, "NEW" in globals()) == (0, None, False)
        """,
        *SIMULATED,
    )
    result.assert_outcomes(passed=3)


def test_what_ranks_share_and_change_is_said(run_suite, pytester):
    pytester.makepyfile(config="rank = None")
    result = run_suite(
        """
        import config
        SEEN, NAMES, STATE, THEIRS, ORDER = [], {"a"}, {}, {"rank": None}, [2, 1]

        def forget():
            global SEEN
            SEEN = []

        CACHE, CONSTANT, MANY = {}, {"a": 1}, list(range(20_000))

        @distributed
        def test_unchanged(ddp, monkeypatch):
            monkeypatch.setattr(config, "rank", ddp.rank)
            monkeypatch.setitem(CONSTANT, "a", ddp.rank)
            CACHE.setdefault("key", "the same for all")
            config.function = test_unchanged
            dist.barrier()

        @distributed
        def test_changed(ddp):
            SEEN.append(ddp.rank)
            MANY.append(ddp.rank)
            dist.barrier()
            NAMES.add(f"{ddp.rank}")
            STATE[ddp.rank] = True
            THEIRS["rank"] = ddp.rank
            ORDER.sort()
            config.rank = config.new = ddp.rank
        """,
        *SIMULATED,
    )
    result.assert_outcomes(passed=2, warnings=8)
    instead = "Keep it in a fixture or in a local variable, or use real ranks (docs/simulated.md)"
    others = "each rank sees what the others put there, which real ranks do not."
    added = "ranks 0, 1, 2 added to it or removed from it"
    outside = (
        "it was assigned from outside of config: each rank sees what any of them assigned, which real ranks do not."
    )
    result.stdout.fnmatch_lines_random(
        [
            f"  *SharedGlobalWarning: simulated ranks share test_suite.SEEN, a list, and {added}: {others} {instead} *",
            f"*share test_suite.MANY, a list, and {added}: *",
            f"*share test_suite.NAMES, a set, and {added}: *",
            f"*share test_suite.STATE, a dict, and {added}: *",
            f"*share test_suite.THEIRS, a dict, and it was changed: {others} *",
            f"*share test_suite.ORDER, a list, and it was changed: {others} *",
            f"*share config.rank, and {outside} {instead}, or assign it in a function of config by `global rank`: *",
            f"*share config.new, and {outside} *",
        ]
    )


def test_real_ranks_share_nothing(run_suite):
    result = run_suite("""
        SEEN = []

        @distributed
        def test_list(ddp):
            SEEN.append(ddp.rank)
            dist.barrier()
            assert SEEN == [ddp.rank]
        """)
    result.assert_outcomes(passed=1)


def test_a_filter_makes_it_an_error(run_suite):
    result = run_suite(
        """
        SEEN = []

        @distributed
        @pytest.mark.filterwarnings("error::pytest_ddp.SharedGlobalWarning")
        def test_list(ddp):
            SEEN.append(ddp.rank)
        """,
        *SIMULATED,
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*SharedGlobalWarning: simulated ranks share test_suite.SEEN, a list, *"])


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f():\n    global b, a\n    def g():\n        global c\n", ["a", "b", "c"]),
        ("def f(:\n    global b\n", []),
        (None, []),
    ],
)
def test_globals_that_functions_assign(tmp_path, source, names):
    file = tmp_path / "module.py"
    if source is not None:
        file.write_text(source)
    assert globals_assigned(file) == names
