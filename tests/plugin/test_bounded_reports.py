"""What ranks say at great length is told with its beginning and its end."""


def test_a_log_without_end_is_bounded_and_keeps_its_beginning_and_its_end(run_suite):
    result = run_suite(
        """
        import logging

        def log():
            logging.getLogger("mine").warning("log begins")
            for _ in range(20):
                logging.getLogger("mine").warning("x" * 10_000)
            logging.getLogger("mine").warning("log ends")

        @distributed
        def test_passes():
            log()

        @distributed
        def test_fails():
            log()
            raise ValueError

        @distributed
        def test_in_a_subtest(subtests):
            with subtests.test("one"):
                log()
                raise ValueError
        """,
        "-rP",
    )
    result.assert_outcomes(passed=1, failed=3)
    one = ["*Captured log call (rank 0)*", "*log begins", "*characters left out*", "*log ends"]
    result.stdout.fnmatch_lines([*one, *one, *one])
    assert max(map(len, result.outlines)) < 40_000


def test_arguments_with_endless_values_are_bounded_where_they_are_asked_for_in_full(run_suite):
    result = run_suite(
        """
        @pytest.fixture
        def tokens():
            return "begin" + "x" * 200_000 + "end"

        @distributed
        def test_it(tokens):
            assert not tokens
        """,
        "-vvv",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*tokens = 'beginxxx*", "*characters left out*", "*xxxend'"])
    assert sum(map(len, result.outlines)) < 600_000
