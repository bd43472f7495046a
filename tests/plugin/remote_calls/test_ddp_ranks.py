"""`ddp_ranks`: plain tests call functions on ranks."""


def test_results_come_back_in_rank_order(run_suite):
    result = run_suite("""
        def work(factor, plus=0):
            return dist.get_rank() * factor + plus, torch.ones(2)

        def test_it(ddp_ranks):
            results = ddp_ranks(world_size=3).run(work, 10, plus=1)
            assert [number for number, _ in results] == [1, 11, 21]
            assert all(torch.equal(tensor, torch.ones(2)) for _, tensor in results)

        def test_closures_travel(ddp_ranks):
            here = 5
            assert ddp_ranks(world_size=2).run(lambda: here + dist.get_rank()) == [5, 6]
        """)
    result.assert_outcomes(passed=2)


def test_functions_travel_under_importlib_mode(run_suite):
    result = run_suite(
        """
        from dataclasses import dataclass

        @dataclass
        class Place:
            rank: int

        def work(): return Place(dist.get_rank())

        def test_it(ddp_ranks):
            assert ddp_ranks(world_size=2).run(work) == [Place(0), Place(1)]
        """,
        "--import-mode=importlib",
    )
    result.assert_outcomes(passed=1)


def test_world_size_defaults_to_the_option(run_suite):
    run_suite("def test_it(ddp_ranks): assert len(ddp_ranks().run(int)) == 3", "--ddp-world-size=3").assert_outcomes(
        passed=1
    )


def test_of_several_world_sizes_the_largest_is_the_default_and_a_list_is_refused(run_suite):
    suite = """
        def test_it(ddp_ranks): assert len(ddp_ranks().run(int)) == 3
        def test_list(ddp_ranks): ddp_ranks(world_size=[2, 3])
        """
    result = run_suite(suite, "--ddp-world-size=1,3,2")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E *UsageError: ddp_ranks(world_size=...) takes one number *; got [[]2, 3[]]:*"])


def test_a_failure_is_one_exception_with_the_same_report(run_suite):
    result = run_suite("""
        from pytest_ddp import RankFailure

        def work():
            print("hello from", dist.get_rank())
            if dist.get_rank() == 1:
                raise ValueError("no good")
            dist.barrier()

        def test_caught(ddp_ranks):
            with pytest.raises(RankFailure, match="rank 1 of 2 .* raised ValueError: no good") as caught:
                ddp_ranks(world_size=2).run(work)
            assert caught.value.root.rank == 1

        def test_shown(ddp_ranks):
            ddp_ranks(world_size=2).run(work)
        """)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E *RankFailure: rank 1 of 2 (gloo, cpu) raised ValueError: no good",
            "E *rank 0: was still running when another rank failed*barrier #1*",
            "E *---- rank 1: traceback ----",
            "E * in work",
            "E *---- rank 0: captured output ----",
            "E *hello from 0",
        ]
    )


def test_skips_are_agreed_on_or_a_disagreement(run_suite):
    result = run_suite("""
        def skip(*ranks):
            if dist.get_rank() in ranks:
                pytest.skip("not here")

        def test_all(ddp_ranks): ddp_ranks(world_size=2).run(skip, 0, 1)

        def test_one(ddp_ranks): ddp_ranks(world_size=2).run(skip, 1)
        """)
    result.assert_outcomes(skipped=1, failed=1)
    result.stdout.fnmatch_lines(["E *the ranks disagree: rank 0 passed, rank 1 skipped: not here; skip on all *"])


def test_fixtures_in_the_wrong_place_say_what_to_use(run_suite):
    result = run_suite("""
        def test_plain(ddp): pass

        @distributed
        def test_rank(ddp_ranks): pass

        def test_too_many(ddp_ranks): ddp_ranks(world_size=100000)
        """)
    result.assert_outcomes(errors=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "the fixture 'ddp' exists on ranks only: decorate the test with @distributed, or use 'ddp_ranks'*",
            "*the fixture 'ddp_ranks' starts ranks from a plain test*use the fixture 'ddp'*",
            "E *UsageError: world size 100000 is too large: * cores run at most *",
        ]
    )


def test_plain_hypothesis_tests_call_ranks(run_suite):
    result = run_suite("""
        from hypothesis import given, settings, strategies as st

        def sums_to(number):
            total = torch.tensor(number)
            dist.all_reduce(total)
            return total.item()

        @settings(max_examples=20, deadline=None, database=None)
        @given(number=st.integers(-1000, 1000))
        def test_it(ddp_ranks, number):
            assert ddp_ranks(world_size=2).run(sums_to, number) == [2 * number] * 2
        """)
    result.assert_outcomes(passed=1)


def test_what_a_function_changes_on_warm_ranks_is_put_back(run_suite):
    result = run_suite("""
        def change():
            torch.set_default_dtype(torch.float64)
            os.environ["LEFT"] = "behind"
            os.chdir("/")
            raise ValueError("after that")

        def test_it(ddp_ranks):
            with pytest.raises(Exception, match="after that"):
                ddp_ranks(world_size=2).run(change)

        @distributed
        def test_next():
            assert torch.get_default_dtype() == torch.float32
            assert "LEFT" not in os.environ
            assert os.getcwd() != "/"
        """)
    result.assert_outcomes(passed=2)
