"""What `evaluation` is asked: to evaluate a model on batches of all ranks. Nothing here imports torch."""

from dataclasses import dataclass

from conformance.scenarios.drawn import Case


@dataclass(frozen=True, repr=False)
class EvaluationCase(Case):
    """A model that is evaluated on batches.

    Attributes:
        sizes: per rank, the number of samples of each of its batches.
        again: whether another model is evaluated afterwards, one in evaluation mode, with gradients turned off.
        half: whether model and inputs are in bfloat16.
    """

    sizes: tuple[tuple[int, ...], ...] = ((1,),)
    again: bool = False
    half: bool = False
