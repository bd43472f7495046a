"""Defaults come from the command line, the environment and the ini file, in this order."""

import pytest

SUITE = "@distributed\ndef test_it(ddp): assert ddp.world_size == {size}"


def test_ini(run_suite, pytester):
    pytester.makeini("[pytest]\nddp_world_size = 3")
    run_suite(SUITE.format(size=3)).assert_outcomes(passed=1)


def test_environment_wins_over_ini(run_suite, pytester, monkeypatch):
    pytester.makeini("[pytest]\nddp_world_size = 3")
    monkeypatch.setenv("PYTEST_DDP_WORLD_SIZE", "1")
    run_suite(SUITE.format(size=1)).assert_outcomes(passed=1)


def test_command_line_wins_over_environment(run_suite, monkeypatch):
    monkeypatch.setenv("PYTEST_DDP_WORLD_SIZE", "1")
    run_suite(SUITE.format(size=2), "--ddp-world-size=2").assert_outcomes(passed=1)


def test_header_says_the_defaults(run_suite):
    result = run_suite("def test_it(): pass", "--ddp-world-size=1,4", "--ddp-device=auto")
    result.stdout.fnmatch_lines(
        ["ddp: world size 1,4, device auto, backend gloo on cpu, nccl on cuda; torch *, * cores, * GPU*; ranks forked*"]
    )


@pytest.mark.parametrize("option", ["--ddp-world-size=0", "--ddp-backend=x", "--ddp-device=x", "--ddp-timeout=x"])
def test_mistakes_stop_the_run(run_suite, option):
    result = run_suite("def test_it(): pass", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {option.partition('=')[0]}: *; got *"])


def test_mistakes_in_ini_and_environment_name_their_place(run_suite, pytester, monkeypatch):
    pytester.makeini("[pytest]\nddp_timeout = soon")
    run_suite("def test_it(): pass").stderr.fnmatch_lines(["ERROR: ddp_timeout in the ini file: *'soon'"])
    monkeypatch.setenv("PYTEST_DDP_TIMEOUT", "later")
    run_suite("def test_it(): pass").stderr.fnmatch_lines(["ERROR: PYTEST_DDP_TIMEOUT: *'later'"])


def test_what_this_machine_lacks_is_skipped_with_the_reason(run_suite):
    result = run_suite("@distributed(world_size=99, device='cuda')\ndef test_it(): pass", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * 99 ranks on cuda need 99 GPUs; this machine has *"])


def test_strict_makes_an_error_of_what_this_machine_lacks(run_suite):
    result = run_suite("@distributed(world_size=99, device='cuda')\ndef test_it(): pass", "--ddp-strict")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["99 ranks on cuda need 99 GPUs; this machine has * (skipped unless --ddp-strict)"])


def test_a_run_that_needs_more_gpus_than_there_are_does_not_start(run_suite):
    result = run_suite("def test_it(): pass", "--ddp-require-cuda=99")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --ddp-require-cuda=99: torch * finds * GPUs here*"])
    run_suite("def test_it(): pass", "--ddp-require-cuda=99", "--collect-only").assert_outcomes()


def test_a_run_on_gpus_does_not_start_without_any(run_suite, pytester, monkeypatch):
    """A suite that skips itself where there is no GPU would be green else."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    suite = "@pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU')\ndef test_it(): pass"
    finds = "torch * finds 0 GPUs here with CUDA_VISIBLE_DEVICES=''; --ddp-device=auto runs on CPUs where *"
    result = run_suite(suite, "--ddp-device=cuda")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --ddp-device=cuda: {finds}"])
    run_suite(suite, "--ddp-device=auto").assert_outcomes(skipped=1)
    pytester.makeini("[pytest]\nddp_device = cuda")
    run_suite(suite).stderr.fnmatch_lines([f"ERROR: --ddp-device=cuda: {finds}"])
    run_suite(suite, "--collect-only").assert_outcomes()


def test_a_run_that_executed_too_few_tests_fails(run_suite):
    suite = """
        @distributed
        def test_runs(): pass

        @distributed(world_size=99, device="cuda")
        def test_cannot(): pass

        @distributed
        def test_skips(): pytest.skip("not today")

        def test_plain(): pass
        """
    result = run_suite(suite, "--ddp-min-executed=2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    failed = "FAILED: 1 executed and 2 skipped, --ddp-min-executed requires 2"
    result.stdout.fnmatch_lines(["*= distributed tests =*", failed, "executed: 1 *", "skipped: 1 (*"])
    result.stdout.fnmatch_lines(["skipped: 1 (not today)"])
    assert run_suite(suite, "--ddp-min-executed=1").ret == pytest.ExitCode.OK
    assert run_suite("", "--ddp-min-executed=1").ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.long
def test_tests_of_all_workers_are_counted_together(pytester):
    pytester.makepyfile("""
        import pytest
        from pytest_ddp import distributed

        @distributed
        @pytest.mark.parametrize("number", range(4))
        def test_it(number): pass
        """)
    for least, code in ((4, pytest.ExitCode.OK), (5, pytest.ExitCode.TESTS_FAILED)):
        run = pytester.runpytest_subprocess("-n", "2", "-p", "no:cacheprovider", f"--ddp-min-executed={least}")
        run.assert_outcomes(passed=4)
        assert run.ret == code
    run.stdout.fnmatch_lines(["FAILED: 4 executed, --ddp-min-executed requires 5"])


def test_the_summary_counts_tests_skips_and_ranks(run_suite):
    suite = """
        @pytest.mark.parametrize("number", range(3))
        @distributed
        def test_runs(number): pass

        @distributed(world_size=1)
        def test_alone(): pass

        @distributed(world_size=99, device="cuda")
        def test_cannot(): pass

        @distributed
        def test_skips(): pytest.skip("not today")
        """
    lines = [
        "*= distributed tests =*",
        "executed: 4 (1 rank, gloo, cpu: 1; 2 ranks, gloo, cpu: 3)",
        "skipped: 1 (not today)",
        "ranks: 2 started, reused 7 times",
        "slowest: *.* s test_suite.py::test_*",
    ]
    result = run_suite(suite)
    result.stdout.fnmatch_lines(lines[:2])
    for line in lines[2:]:
        result.stdout.fnmatch_lines([line])
    result.stdout.fnmatch_lines(["skipped: 1 (99 ranks on cuda need 99 GPUs; this machine has *)"])
    run_suite(suite, "-q").stdout.no_fnmatch_line("*distributed tests*")
    run_suite("def test_it(): pass").stdout.no_fnmatch_line("*distributed tests*")


def test_what_ranks_say_at_their_end_is_shown(run_suite):
    result = run_suite("""
        import atexit

        def leave():
            raise ValueError("had enough")

        @distributed
        def test_it(ddp):
            if ddp.rank == 1:
                atexit.register(leave)
        """)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*= distributed tests =*", "output of rank 1 at exit:", "*ValueError: had enough"])
    result.stdout.no_fnmatch_line("output of rank 0 at exit:")


def test_what_no_machine_could_run_fails(run_suite):
    result = run_suite("@distributed(world_size=100000)\ndef test_it(): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["world size 100000 is too large: * cores run at most *"])


def test_a_wrong_mark_fails_at_collection(run_suite):
    result = run_suite("@pytest.mark.distributed(world_size='two')\ndef test_it(): pass")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*@distributed(world_size=...) takes an integer from 1*; got 'two'*"])


def test_ranks_start_where_warnings_are_errors_and_the_configuration_is_strict(run_suite, pytester):
    pytester.makeini("[pytest]\nfilterwarnings = error\nstrict = true\ntimeout = 100")
    run_suite("@distributed\ndef test_it(ddp): pass").assert_outcomes(passed=1)


def test_options_of_other_plugins_reach_the_ranks_whatever_they_hold(run_suite):
    result = run_suite(
        """
        @distributed
        def test_it(ddp, request):
            assert request.config.getoption("word") == "given"
            assert request.config.getoption("call")(1) == 2
        """,
        "--word=given",
        conftest="""
import threading

def pytest_addoption(parser):
    parser.addoption("--word")
    parser.addoption("--call", default=lambda number: number + 1)
    parser.addoption("--lock", default=threading.Lock())
""",
    )
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("name", ["capture", "debugging", "setuponly", "logging", "terminal"])
def test_plugins_of_pytests_own_may_be_left_out(pytester, name):
    pytester.makepyfile("""
        from pytest_ddp import distributed

        @distributed(world_size=2)
        def test_passes(): pass

        @distributed(world_size=2)
        def test_fails(ddp): assert ddp.rank == 0
    """)
    result = pytester.inline_run("-p", f"no:{name}")
    result.assertoutcome(passed=1, failed=1)


@pytest.mark.parametrize("name", ["reports", "tmpdir"])
def test_a_plugin_that_ranks_need_is_asked_for_and_plain_tests_run_without(run_suite, name):
    result = run_suite("@distributed\ndef test_it(): pass\n\ndef test_plain(): pass", "-p", f"no:{name}")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([f"ranks need pytest's plugin {name}: leave out `-p no:{name}`"])
