"""What `distributed_sampler` is asked: to deal a data set to the ranks."""

from dataclasses import dataclass

from conformance.scenarios.drawn import Case


@dataclass(frozen=True, repr=False)
class SamplerCase(Case):
    """A data set that ranks share out; each rank is given `workload.numbers.seeds`.

    Attributes:
        length: its samples.
        shuffle, drop_last: as a sampler is told.
        epochs: those that one sampler is iterated over, in this order; None where `set_epoch` is not called before.
        replicas: a number of replicas, all of whose shares every rank asks for besides; 0 for none.
        later: whether a further sampler is made at what looks like a later time, in another process.
        left: whether an iteration in the first of the epochs, before these, is left after one sample.
    """

    length: int = 4
    shuffle: bool = True
    drop_last: bool = False
    epochs: tuple[int | None, ...] = (0, 1, 0)
    replicas: int = 0
    later: bool = False
    left: bool = False

    @property
    def last_epoch(self) -> int:
        """The last epoch that is set; 0 if none is."""
        return next((epoch for epoch in reversed(self.epochs) if epoch is not None), 0)
