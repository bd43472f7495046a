"""Threads and processes of torch's compiler stay on a rank for the next test, and are no leak."""

import pytest
from compiled_suite import compiled


def test_compilers_stay_and_are_no_leak(run_suite):
    result = run_suite(
        """
        import torch._inductor.config
        from torch._inductor.async_compile import AsyncCompile
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        pids = []

        @pytest.mark.parametrize("again", range(2))
        @distributed
        def test_compiles(ddp, again):
            torch._inductor.config.compile_threads = 2  # with one core it would use none
            assert cache_dir() == os.environ["TORCHINDUCTOR_CACHE_DIR"]
            assert AsyncCompile.pool().submit(int, 3).result() == 3
            assert AsyncCompile.process_pool().submit(int, 3).result() == 3
            pids.append((os.getpid(), AsyncCompile.process_pool().process.pid))
            assert len(pids) == again + 1
            assert len(set(pids)) == 1
        """,
        "--ddp-leaks=error",
        "--ddp-world-size=1",
    )
    result.assert_outcomes(passed=2)


@pytest.mark.long
def test_a_compiled_model_trains_on_ranks(run_suite, tmp_path):
    result = run_suite(compiled("cpu", tmp_path), "--ddp-leaks=error", "--ddp-timeout=200")
    result.assert_outcomes(passed=2)
