"""What `evaluation` is asked: to evaluate a model on batches of all ranks, and the numbers that each rank is given."""

from dataclasses import dataclass

import torch

from conformance.components.evaluation.accuracy import draw_right
from conformance.scenarios.drawn import Case
from conformance.workload.numbers import Tensors, generator_of

_CLASSES = 4
OTHER_LABELS = _CLASSES - 1  # added to labels, modulo their number: wrong ones are right then, and the reverse
_CORNERS = ((1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1))  # of classes: no rounding moves a sample to another one
_LENGTH = 1.1  # no number of float32


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


def numbers(case: EvaluationCase, seed: int, rank: int) -> Tensors:
    """Draw the classifier that all ranks share, and this rank's samples, as many labelled rightly as was drawn.

    The class of a sample has the largest share of the probability, and less than half of it.
    """
    generator = generator_of(seed)
    corners = _LENGTH * torch.tensor(_CORNERS, dtype=torch.bfloat16 if case.half else torch.float64)
    weight = corners[torch.randperm(_CLASSES, generator=generator)]
    right = draw_right(case.sizes, generator)[rank]
    own = generator_of(seed + 1 + rank)
    given: Tensors = {"weight": weight}
    for batch, (size, correct) in enumerate(zip(case.sizes[rank], right, strict=True)):
        x = weight[torch.randint(_CLASSES, (size,), generator=own)] / 8
        wrong = torch.randperm(size, generator=own) >= correct
        given |= {f"x/{batch}": x, f"y/{batch}": ((x @ weight.T).argmax(1) + wrong.long()) % _CLASSES}
    return given
