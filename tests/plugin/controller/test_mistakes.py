"""Every misuse has a message: what was seen, what was expected, what to write."""

import pytest


def test_mistakes_in_decorators_and_markers_are_refused_where_they_stand(pytester):
    written = {
        "test_decorator": "@distributed(world_size=0)",
        "test_number": "@distributed(2)",
        "test_unknown": "@pytest.mark.distributed(wrold_size=2)",
        "test_several": "@pytest.mark.distributed(2, 3)",
        "test_size": "@pytest.mark.distributed(world_size='2')",
        "test_backend": "@pytest.mark.distributed(backend='mpl')",
    }
    pytester.makepyfile(
        **{
            name: f"import pytest\nfrom pytest_ddp import distributed\n{line}\ndef test_it(): pass"
            for name, line in written.items()
        }
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=6)
    result.stdout.fnmatch_lines(
        [
            "test_backend.py::test_it: *takes one of gloo, nccl, mpi, ucc, sim; got 'mpl'",
            "test_decorator.py:3: in <module>",
            "E *UsageError: @distributed(world_size=...) takes an integer from 1, or a list of them; got 0",
            "test_number.py:3: in <module>",
            "E *UsageError: @distributed takes keywords *: write @distributed(world_size=2)",
            "test_several.py::test_it: distributed takes the keywords world_size, *; got distributed(2, 3)",
            "test_size.py::test_it: *takes an integer from 1, or a list of them; got '2'",
            "test_unknown.py::test_it: distributed takes the keywords world_size, *; got distributed(wrold_size=2)",
        ]
    )


def test_the_decorator_goes_below_classmethod(run_suite):
    below = """
        class Test:
            @classmethod
            @distributed
            def test_it(cls, ddp): dist.barrier()
        """
    run_suite(below).assert_outcomes(passed=1)
    above = run_suite("class Test:\n    @distributed\n    @classmethod\n    def test_it(cls): pass")
    above.stdout.fnmatch_lines(["E *UsageError: @distributed goes below @classmethod, on the function itself"])


def test_a_mark_below_a_fixture_is_refused_by_pytest_where_it_stands(run_suite):
    result = run_suite("@pytest.fixture\n@distributed\ndef model(): pass\n\n@distributed\ndef test_it(model): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["E *Marks cannot be applied to fixtures*"])


def test_a_world_size_that_cannot_be_names_where_it_was_set(run_suite, pytester, monkeypatch):
    def stopped_by(*args: str) -> str:
        result = run_suite("def test_it(): pass", *args)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        return next(line for line in result.stderr.lines if line.startswith("ERROR: "))

    assert stopped_by("--ddp-world-size=-1") == "ERROR: --ddp-world-size: a world has at least 1 rank; got -1"
    monkeypatch.setenv("PYTEST_DDP_WORLD_SIZE", "True")
    expected = "expected a world size such as 2, or several such as 1,2,4; got"
    assert stopped_by() == f"ERROR: PYTEST_DDP_WORLD_SIZE: {expected} 'True'"
    monkeypatch.delenv("PYTEST_DDP_WORLD_SIZE")
    pytester.makeini("[pytest]\nddp_world_size = two")
    assert stopped_by() == f"ERROR: ddp_world_size in the ini file: {expected} 'two'"


def test_what_cannot_run_says_why(run_suite):
    result = run_suite(
        """
        @distributed(backend="nccl", device="cpu")
        def test_nccl_on_cpu(): pass

        @distributed(backend="nccl", world_size=64)
        def test_nccl_without_gpus(): pass

        @distributed(world_size=100_000)
        def test_too_many(): pass

        @distributed
        async def test_async(): pass

        def test_plain(ddp): pass

        def test_another(ddp): pass

        @distributed
        def test_rank(ddp_ranks): pass
        """,
        "-rs",
    )
    result.assert_outcomes(errors=5, failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            'backend="nccl" sends CUDA tensors only: remove device="cpu", or write backend="gloo"',
            "world size 100000 is too large: * cores run at most * ranks",
            "the fixture 'ddp' exists on ranks only: decorate the test with @distributed, or use 'ddp_ranks'*",
            "the fixture 'ddp' exists on ranks only: decorate the test with @distributed, or use 'ddp_ranks'*",
            "the fixture 'ddp_ranks' starts ranks from a plain test*use the fixture 'ddp'",
            "rank * raised Failed: async def functions are not natively supported.",
            "You need to install a suitable plugin for your async framework*",
            "SKIPPED*64 ranks on cuda need 64 GPUs; this machine has *",
        ]
    )


def test_a_test_that_yields_is_refused_by_pytest(run_suite):
    result = run_suite("@distributed\ndef test_it():\n    yield")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["'yield' keyword is allowed in fixtures, but not in tests (test_it)"])


def test_what_ranks_do_not_find(run_suite):
    result = run_suite(
        """
        @distributed
        def test_before(): pass

        @pytest.mark.parametrize("value", [0], ids=[os.urandom(4).hex()])
        @distributed
        def test_random(value): pass

        @distributed
        def test_fixture(only_here): pass
        """,
        conftest="""
import pytest

class Plugin:
    @pytest.fixture
    def only_here(self): return 1

def pytest_configure(config):
    if not config.pluginmanager.has_plugin("ddp-rank"):
        config.pluginmanager.register(Plugin())
""",
    )
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(
        [
            "*this rank does not find test_suite.py::test_random[[]*their names and parameters may not be random",
            "rank * raised an error: fixture 'only_here' not found",
            "  hint: if plain tests find 'only_here', it is from a plugin that is registered in pytest's own process *",
        ]
    )


def test_a_group_of_ones_own(run_suite):
    result = run_suite("""
        @distributed
        def test_twice(): dist.init_process_group("gloo")

        @distributed
        def test_as_advised(ddp):
            dist.destroy_process_group()
            dist.init_process_group(
                "gloo", init_method=f"file://{ddp.shared_path}/store", rank=ddp.rank, world_size=ddp.world_size
            )
            dist.barrier()

        @distributed
        def test_next(): dist.barrier()

        @distributed
        def test_input(): input()
        """)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "rank * raised ValueError: trying to initialize the default process group twice!",
            "  hint: @distributed has already created the process group*destroy_process_group() first*",
            "  hint: ranks have no standard input; breakpoint() works with --ddp-pdb-rank=RANK",
        ]
    )


def test_processes_that_a_test_starts_work(run_suite):
    result = run_suite("""
        import multiprocessing
        import torch.multiprocessing as mp

        def put(queue, number): queue.put(number)

        @distributed
        def test_forks(ddp):
            context = multiprocessing.get_context("fork")
            queue = context.SimpleQueue()
            child = context.Process(target=put, args=(queue, ddp.rank))
            child.start()
            assert queue.get() == ddp.rank
            child.join()
            assert child.exitcode == 0

        def meet(index, path):
            dist.init_process_group("gloo", init_method=f"file://{path}/store", rank=index, world_size=1)
            dist.barrier()

        @distributed(world_size=1)
        def test_spawns(ddp): mp.spawn(meet, args=(ddp.shared_path,), nprocs=1)
        """)
    result.assert_outcomes(passed=2)


def test_what_cannot_travel_to_ranks_and_back(run_suite):
    result = run_suite("""
        @pytest.fixture
        def lock(): return threading.Lock()

        def echo(value): return value

        class DoesNotPickle(Exception):
            def __init__(self, first, second):
                super().__init__(first)
                self.lock = threading.Lock()

        def raises(): raise DoesNotPickle("as text", 2)

        def test_argument(ddp_ranks): ddp_ranks().run(echo, threading.Lock())

        def test_generator(ddp_ranks): ddp_ranks().run(echo, value=(i for i in range(3)))

        def test_fixture_value(ddp_ranks, lock): ddp_ranks().run(lambda: lock)

        def test_result(ddp_ranks): ddp_ranks().run(threading.Lock)

        def test_group(ddp_ranks): ddp_ranks().run(lambda: dist.group.WORLD)

        def test_exception(ddp_ranks): ddp_ranks().run(raises)

        def test_no_function(ddp_ranks): ddp_ranks().run(5)
        """)
    result.assert_outcomes(failed=7)
    there = "cannot be sent to the ranks (*): create it inside the function"
    back = "cannot be sent back from the rank (*): return plain values or tensors, *"
    result.stdout.fnmatch_lines(
        [
            f"E *UsageError: ddp_ranks(...).run: argument 1, a _thread.lock, {there}",
            f"E *UsageError: ddp_ranks(...).run: argument 'value', a generator, {there}",
            f"E *UsageError: ddp_ranks(...).run: variable 'lock' that the function uses, a _thread.lock, {there}",
            f"E *raised UsageError: the result of the function, a _thread.lock, {back}",
            f"E *raised UsageError: the result of the function, a torch.*ProcessGroup, {back}",
            "E *raised DoesNotPickle: as text",
            "E *UsageError: ddp_ranks(...).run takes a function, then its arguments; got 5",
        ]
    )
    result.stdout.no_fnmatch_line("*cloudpickle*")
