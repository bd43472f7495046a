"""`@distributed` on a test function: the body runs on every rank of a real process group."""

from pytest_ddp.pool.launcher import SpawnLauncher


def test_the_body_runs_on_every_rank(run_suite):
    result = run_suite("""
        @distributed(world_size=3, backend="gloo")
        def test_it(ddp):
            total = torch.tensor([float(ddp.rank)])
            dist.all_reduce(total)
            assert total.item() == 3
            assert (ddp.rank, ddp.world_size, ddp.local_rank) == (dist.get_rank(), dist.get_world_size(), ddp.rank)
            assert (ddp.device, ddp.backend, ddp.group) == (torch.device("cpu"), "gloo", dist.group.WORLD)
            assert repr(ddp) == f"<rank {ddp.rank} of 3, gloo, cpu>"
            assert os.environ["RANK"] == str(ddp.rank)
        """)
    result.assert_outcomes(passed=1)


def test_the_option_is_the_default_and_an_explicit_size_wins(run_suite):
    result = run_suite(
        """
        @distributed
        def test_default(ddp):
            assert ddp.world_size == 3

        @distributed(world_size=1)
        def test_explicit(ddp):
            assert ddp.world_size == 1
        """,
        "--ddp-world-size=3",
    )
    result.assert_outcomes(passed=2)


def test_a_list_of_world_sizes_parametrizes(run_suite):
    result = run_suite(
        """
        @pytest.mark.parametrize("letter", ["a", "b"])
        @distributed(world_size=[1, 2])
        def test_it(ddp, letter):
            assert ddp.world_size in (1, 2)
        """,
        "-v",
    )
    result.assert_outcomes(passed=4)
    for name in ("ws1-gloo-a", "ws1-gloo-b", "ws2-gloo-a", "ws2-gloo-b"):
        result.stdout.fnmatch_lines([f"*::test_it[[]{name}[]] PASSED*"])


def test_tests_of_one_world_size_run_together_module_by_module(run_suite, pytester):
    several = """
        from pytest_ddp import distributed

        @distributed(world_size=[1, 2])
        def test_a(): pass

        @distributed(world_size=[1, 2])
        def test_b(): pass
        """
    pytester.makepyfile(test_another=several)
    result = run_suite(several, "-v")
    result.assert_outcomes(passed=8)
    order = [line.split()[0] for line in result.outlines if " PASSED" in line]
    names = [f"test_{letter}[ws{size}-gloo]" for size in (1, 2) for letter in "ab"]
    assert order == [f"{module}.py::{name}" for module in ("test_another", "test_suite") for name in names]


def test_parameters_may_have_a_world_size_of_their_own(run_suite):
    result = run_suite("""
        @pytest.mark.parametrize(
            "size", [pytest.param(size, marks=distributed(world_size=size)) for size in (1, 3)] + [0]
        )
        def test_it(request, size):
            assert dist.is_initialized() == bool(size)
            assert not size or dist.get_world_size() == size
        """)
    result.assert_outcomes(passed=3)


def test_several_world_sizes_in_the_option_parametrize_too(run_suite):
    result = run_suite("@distributed\ndef test_it(ddp): pass", "--ddp-world-size=1,2", "-v")
    result.stdout.fnmatch_lines(["*::test_it[[]ws1-gloo[]] PASSED*", "*::test_it[[]ws2-gloo[]] PASSED*"])


def test_fixtures_live_on_the_ranks(run_suite):
    result = run_suite(
        """
        @pytest.fixture(scope="module")
        def once():
            return []

        @pytest.fixture
        def model(ddp, once):
            once.append(ddp.rank)
            yield torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
            print("finalised on", dist.get_rank())

        @distributed
        def test_first(ddp, model, tmp_path, monkeypatch, once):
            monkeypatch.setenv("X", str(ddp.rank))
            (tmp_path / "mine").write_text(os.environ["X"])
            model(torch.ones(1, 2)).sum().backward()
            assert once == [ddp.rank]

        @distributed
        def test_second(ddp, model, tmp_path, once):
            assert "X" not in os.environ
            assert not list(tmp_path.iterdir())
            assert once == [ddp.rank] * 2

        @pytest.fixture
        def in_conftest(from_conftest):
            return from_conftest + 1

        @distributed
        def test_conftest(in_conftest):
            assert in_conftest == 42
        """,
        "-rP",
        conftest="import pytest\n@pytest.fixture\ndef from_conftest(): return 41",
    )
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*Captured stdout+stderr teardown (rank 1)*", "finalised on 1"])


def test_module_fixtures_are_finalised_once_after_their_last_test(run_suite, tmp_path):
    result = run_suite(f"""
        from pathlib import Path

        @pytest.fixture(scope="module")
        def log():
            path = Path({str(tmp_path)!r}) / f"rank{{dist.get_rank()}}"
            path.open("a").write("up ")
            yield path
            path.open("a").write("down")

        @distributed
        def test_first(log): log.open("a").write("first ")

        def test_plain(): pass

        @distributed
        def test_second(log): log.open("a").write("second ")
        """)
    result.assert_outcomes(passed=3)
    assert [path.read_text() for path in sorted(tmp_path.glob("rank*"))] == ["up first second down"] * 2


def test_skip_xfail_and_raises_behave_as_in_one_process(run_suite):
    result = run_suite(
        """
        @pytest.mark.skip(reason="by mark")
        @distributed
        def test_mark(ddp): raise AssertionError

        @distributed
        def test_call(): pytest.skip("by call")

        @pytest.mark.xfail(reason="known")
        @distributed
        def test_xfail(ddp): assert ddp.rank == 0

        @pytest.mark.xfail(strict=True)
        @distributed
        def test_xpass(): pass

        @distributed
        def test_raises():
            with pytest.raises(ZeroDivisionError):
                1 / 0
        """,
        "-rsx",
    )
    result.assert_outcomes(passed=1, skipped=2, xfailed=1, failed=1)
    result.stdout.fnmatch_lines(["SKIPPED*by mark", "SKIPPED*by call", "XFAIL*known (rank 1 of 2)"])


def test_classes_and_modules_can_be_marked(run_suite):
    result = run_suite("""
        pytestmark = pytest.mark.distributed(world_size=2)

        def test_module(ddp):
            assert ddp.world_size == 2

        @distributed(world_size=3)
        class TestClass:
            def test_class(self, ddp):
                assert ddp.world_size == 3

            @distributed(world_size=1)
            def test_closest(self, ddp):
                assert ddp.world_size == 1
        """)
    result.assert_outcomes(passed=3)


def test_isolation_gives_a_test_processes_of_its_own(run_suite, tmp_path):
    result = run_suite(f"""
        from pathlib import Path

        def note(name): (Path({str(tmp_path)!r}) / f"{{name}}{{dist.get_rank()}}").write_text(str(os.getpid()))

        @distributed
        def test_warm(): note("warm")

        @distributed(isolation="process")
        def test_own(): note("own")

        @distributed
        def test_warm_again(): note("again")
        """)
    result.assert_outcomes(passed=3)
    read = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert (read["warm0"], read["warm1"]) == (read["again0"], read["again1"])
    assert not {read["own0"], read["own1"]} & {read["warm0"], read["warm1"]}


def test_stop_after_the_first_failure(run_suite):
    result = run_suite("@distributed\ndef test_a(): assert 0\n@distributed\ndef test_b(): pass", "-x")
    result.assert_outcomes(failed=1)


def test_teardown_errors_are_errors_at_teardown(run_suite):
    result = run_suite("""
        @pytest.fixture
        def broken():
            yield
            raise ValueError("on the way out")

        @distributed
        def test_it(broken): pass

        @distributed
        def test_next(): pass
        """)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_it*", "*raised ValueError: on the way out*"])


def test_without_capture_the_output_of_ranks_is_shown_as_it_comes(pytester):
    pytester.makepyfile(
        "from pytest_ddp import distributed\n@distributed\ndef test_it(ddp): print('live from', ddp.rank)"
    )
    result = pytester.runpytest_subprocess("-s", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    assert all(f"live from {rank}" in result.stdout.str() for rank in (0, 1))


def test_ranks_in_fresh_interpreters_run_tests_too(run_suite, monkeypatch):
    monkeypatch.setattr("pytest_ddp.controller.rank_pools.launcher_for", lambda _device: SpawnLauncher())
    result = run_suite("""
        @distributed
        def test_it(ddp):
            dist.barrier()

        @distributed
        def test_next(ddp):
            assert ddp.rank == 0
        """)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["rank 1 of 2 (gloo, cpu) raised AssertionError: assert 1 == 0*"])
