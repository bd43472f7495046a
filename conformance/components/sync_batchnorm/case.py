"""What `sync_batchnorm` is asked: to convert a batch norm, which then trains and evaluates. It imports no torch."""

from dataclasses import dataclass

from conformance.scenarios.drawn import Case


@dataclass(frozen=True, repr=False)
class SyncBatchNormCase(Case):
    """A batch norm that is converted, trained and evaluated.

    Attributes:
        sizes: samples per batch, of each rank.
        dimensions: of the input: 2 for (N, C), 3 for (N, C, L), 4 for (N, C, H, W), 5 for (N, C, D, H, W).
        steps: forwards and backwards.
        eps, momentum, affine, tracked: options of the norm; `tracked` is `track_running_stats`.
        frozen: whether weight and bias do not require gradients.
        evaluating: whether the model is in evaluation mode when it is converted, and stays in it.
        bare: whether the model is the norm alone.
        at_once: whether all forwards come before the first backward.
        far: whether norm and inputs are in float32, and the inputs' mean is thousands of times their spread.
        transposed: whether inputs lie in memory in the reverse order of their dimensions.
        stretched: whether each rank's inputs, of three dimensions, are longer than those of the rank before.
        first: whether the norm comes first in the model: its inputs need no gradient.
        without_gradients: whether steps are forwards alone, with gradients turned off.
        shared: whether the model holds the norm at a second place, too, where it is not called.
    """

    sizes: tuple[int, ...] = (2,)
    dimensions: int = 2
    steps: int = 1
    eps: float = 1e-5
    momentum: float | None = 0.1
    affine: bool = True
    tracked: bool = True
    frozen: bool = False
    evaluating: bool = False
    bare: bool = False
    at_once: bool = False
    far: bool = False
    transposed: bool = False
    stretched: bool = False
    first: bool = False
    without_gradients: bool = False
    shared: bool = False

    @property
    def state(self) -> tuple[str, ...]:
        """The names in the norm's `state_dict`."""
        tracked = ("running_mean", "running_var", "num_batches_tracked")
        return ("weight", "bias") * self.affine + tracked * self.tracked

    @property
    def prefix(self) -> str:
        """What comes before them in the model's."""
        return "" if self.bare else "1.0."
