"""What ranks say at great length is told with its beginning and its end."""


def test_much_is_bounded_and_keeps_its_beginning_and_its_end(run_suite):
    result = run_suite(r"""
        import logging

        @distributed
        def test_one_line():
            raise ValueError("line begins " + "x" * 10_000_000 + " line ends")

        @distributed
        def test_many_lines():
            raise ValueError("lines begin" + "\n" * 100_000 + "lines end")

        @distributed
        def test_output():
            os.write(1, b"output begins\n")
            for _ in range(100):
                os.write(1, b"x" * 2**20)
            os.write(1, b"\xff\xfe output ends without a newline")
            raise ValueError

        @distributed
        def test_log(ddp, caplog):
            logging.getLogger("mine").warning("logged on %d", ddp.rank)
            assert caplog.messages == [f"logged on {ddp.rank}"]
            raise ValueError
        """)
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(
        [
            "rank * raised ValueError: line begins xxx*x...",
            "E *ValueError: line begins xxx*",
            "... * characters left out ...",
            "*xxx line ends",
            "rank * raised ValueError: lines begin",
            "E *ValueError: lines begin",
            "... * characters left out ...",
            "E *lines end",
            "*Captured stdout+stderr call (rank 1)*",
            "output begins",
            "... * bytes left out ...",
            r"*\xff\xfe output ends without a newline",
            "rank * raised ValueError",
            "*Captured log call (rank 0)*",
            "WARNING *mine:test_suite.py:* logged on 0",
            "*Captured log call (rank 1)*",
            "WARNING *mine:test_suite.py:* logged on 1",
        ]
    )
    assert len(result.stdout.str()) < 2_000_000


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
