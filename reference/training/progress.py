"""Where a training stands, in numbers that mean the same on any number of ranks."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Place:
    """Where a training stands, always between two steps.

    The sampler deals the shuffled examples out in turn, so after k batches of B on W ranks the first k B W of them are
    done, whatever W is. Counted in examples, a place within an epoch holds for another number of ranks too.

    Attributes:
        epoch: epochs that are over.
        examples: of the current epoch, that all ranks together have trained on; a short batch counts as a full one.
        steps: updates of the parameters, over all epochs.
    """

    epoch: int = 0
    examples: int = 0
    steps: int = 0

    def advance(self, examples: int) -> None:
        """A step on so many examples is over."""
        self.steps += 1
        self.examples += examples

    def begin_next_epoch(self) -> None:
        """The epoch is over."""
        self.epoch += 1
        self.examples = 0

    def state_dict(self) -> dict[str, Any]:
        """As a checkpoint keeps it."""
        return asdict(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.__dict__.update(state_dict)
