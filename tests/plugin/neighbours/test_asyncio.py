"""pytest-asyncio beside ours: coroutines as tests on ranks."""

from textwrap import dedent

ASYNCHRONOUS = """
import asyncio

async def total(value):
    await asyncio.sleep(0)
    tensor = torch.tensor(value)
    dist.all_reduce(tensor)
    return tensor.item()

@distributed
async def test_unmarked(ddp):
    assert await total(1) == 2

@pytest.mark.asyncio
@distributed
async def test_marked(ddp):
    assert await total(ddp.rank) == 1

@pytest.mark.asyncio
@distributed
async def test_fails(ddp):
    assert await total(ddp.rank) == 0
"""
WITH_ASYNCIO = ("-p", "asyncio", "-o", "asyncio_default_fixture_loop_scope=function")


def test_asyncio_in_auto_mode_runs_every_coroutine(run_suite):
    result = run_suite(ASYNCHRONOUS, *WITH_ASYNCIO, "--asyncio-mode=auto")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["E *assert 1 == 0"])


def test_asyncio_in_strict_mode_runs_marked_coroutines_and_others_fail(run_suite):
    result = run_suite(ASYNCHRONOUS, *WITH_ASYNCIO, "--asyncio-mode=strict")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["rank ? of 2 (gloo, cpu) raised Failed: async def functions are not natively *"])


def test_asyncio_makes_fixtures_on_the_ranks(run_suite):
    suite = """
        import asyncio

        left = []

        @distributed
        @pytest.fixture
        async def doubled(ddp):
            await asyncio.sleep(0)
            yield 2 * ddp.rank
            left.append(ddp.rank)

        @distributed
        async def test_uses_it(ddp, doubled): assert doubled == 2 * ddp.rank

        @distributed
        def test_it_was_left(ddp): assert left == [ddp.rank]
        """
    result = run_suite(suite, *WITH_ASYNCIO, "--asyncio-mode=auto")
    result.assert_outcomes(passed=2)


def test_asyncio_runs_coroutines_that_hypothesis_gives_arguments(run_suite):
    suite = """
        from hypothesis import given, settings, strategies as st

        @pytest.mark.asyncio
        @distributed
        @settings(max_examples=5, database=None, derandomize=True)
        @given(value=st.integers())
        async def test_passes(ddp, value):
            await asyncio.sleep(0)

        @pytest.mark.asyncio
        @distributed
        @settings(database=None, derandomize=True)
        @given(value=st.integers())
        async def test_fails(ddp, value):
            await asyncio.sleep(0)
            assert value < 100

        @distributed
        @settings(database=None, derandomize=True)
        @given(value=st.integers())
        async def test_unmarked(ddp, value): pass
        """
    result = run_suite("import asyncio\n" + dedent(suite), *WITH_ASYNCIO, "--asyncio-mode=strict")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        ["E *assert 100 < 100", "*Failed: async def functions are not natively supported: install a plugin *"]
    )
