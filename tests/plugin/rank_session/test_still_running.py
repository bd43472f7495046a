"""Threads and processes that a test started get some time to end; a rank whose thread does not end is replaced."""


def test_a_thread_that_ends_soon_is_no_leak(run_suite):
    result = run_suite(
        """
        class EndsWhenWaitedFor(threading.Thread):
            def __init__(self):
                super().__init__()
                self.is_waited_for = threading.Event()

            def run(self):
                self.is_waited_for.wait()

            def join(self, timeout=None):
                self.is_waited_for.set()
                super().join(timeout)

        @distributed(world_size=2)
        def test_leaves_a_thread(ddp):
            from pytest_ddp.rank_session import leak_resources

            leak_resources._ENDING_SECONDS = 60  # on this rank, for the rest of the run
            EndsWhenWaitedFor().start()
        """,
        "--ddp-leaks=error",
    )
    result.assert_outcomes(passed=1)


def test_a_child_process_that_ends_soon_is_no_leak(run_suite):
    result = run_suite(
        """
        import subprocess

        @distributed(world_size=2)
        def test_leaves_a_process(ddp):
            from pytest_ddp.rank_session import leak_resources

            leak_resources._ENDING_SECONDS = 60  # on this rank, for the rest of the run
            subprocess.Popen(["sleep", "0.3"]).terminate() if ddp.rank else subprocess.Popen(["sleep", "0.3"])
        """,
        "--ddp-leaks=error",
    )
    result.assert_outcomes(passed=1)


def test_ranks_with_a_thread_that_still_runs_are_replaced(run_suite, tmp_path):
    suite = f"""
        from pathlib import Path
        pids = []

        @distributed
        @pytest.fixture(scope="module")
        def shared():
            yield
            (Path({str(tmp_path)!r}) / f"finalised{{os.getpid()}}").touch()

        @distributed
        def test_leaves_a_thread(ddp, shared):
            pids.append(os.getpid())
            if ddp.rank == 1:
                threading.Thread(target=threading.Event().wait, name="lingerer", daemon=True).start()

        @distributed
        def test_next(shared):
            dist.barrier()
            assert not pids
        """
    result = run_suite(suite)
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(
        ["*left behind: 1 thread still running: lingerer; its ranks are replaced (*) [[]rank 1[]]", "*4 started*"]
    )
    assert len(list(tmp_path.iterdir())) == 4
    result = run_suite(suite, "--ddp-leaks=error")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(
        ["*ERROR at teardown of test_leaves_a_thread*", "*1 thread still running: lingerer*(--ddp-leaks=error)"]
    )
    result = run_suite(suite.replace("assert not pids", "assert pids"), "--ddp-leaks=off")
    result.assert_outcomes(passed=2, warnings=0)
    result.stdout.fnmatch_lines(["*2 started*"])
