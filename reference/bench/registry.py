"""All benchmarks by name, in the order in which the report shows them."""

from reference.bench import all_reduce, memory
from reference.bench.benchmark import Benchmark

BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in (all_reduce.BENCHMARK, memory.BENCHMARK)}
