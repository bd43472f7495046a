"""What `loader_generator` is asked: generators of all ranks, from one seed."""

from dataclasses import dataclass

from conformance.scenarios.drawn import Case


@dataclass(frozen=True, repr=False)
class GeneratorCase(Case):
    """Generators for the data loaders of all ranks, from one seed; each rank is given `workload.numbers.seeds`."""
