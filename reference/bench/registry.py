"""All benchmarks by name, in the order in which the report shows them."""

from reference.bench import (
    all_reduce,
    buckets,
    ddp,
    memory,
    models,
    roofline,
    step,
    trace,
)
from reference.bench.benchmark import Benchmark

_MODULES = (
    roofline,
    all_reduce,
    ddp,
    buckets,
    trace,
    memory,
    step,
    models,
)

BENCHMARKS: dict[str, Benchmark] = {module.BENCHMARK.name: module.BENCHMARK for module in _MODULES}
