"""Random numbers in Hypothesis tests on ranks: the same in every example, unless they are drawn."""


def test_random_numbers_are_those_of_the_first_example_in_all(run_given):
    result = run_given("""
        seen = []

        @distributed
        @given(x=st.integers())
        @fast
        def test_it(ddp, x):
            seen.append(torch.rand(1).item())
            assert len(set(seen)) == 1
        """)
    result.assert_outcomes(passed=1)


def test_random_module_seeds_the_ranks(run_given):
    result = run_given("""
        import random
        drawn, found = [], []

        @distributed
        @given(nested=st.tuples(st.random_module(), st.integers()), again=st.random_module())
        @settings(fast, max_examples=10)
        def test_it(ddp, nested, again):
            drawn.append(again.seed)
            found.append(random.random())
            assert found[-1] == random.Random(again.seed).random()

        @distributed
        def test_after(ddp):
            assert len(set(found)) == len(set(drawn)) > 3
        """)
    result.assert_outcomes(passed=2)
