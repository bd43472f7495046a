"""Hooks that tell when backward has stored a parameter's gradient, and that end with whoever asked for them.

Source: PyTorch's documentation of `torch.Tensor.register_post_accumulate_grad_hook`.
"""

from collections.abc import Callable, Iterable
from weakref import WeakMethod

from torch import Tensor


def call_when_ready(parameters: Iterable[Tensor], hook: Callable[[Tensor], None]) -> None:
    """Have `hook`, a method, called with each parameter whenever backward has stored its gradient.

    The hooks end with the object whose method it is. Python's garbage collector does not look into autograd's hooks: an
    object that is held by one, and holds the parameter, would stay for ever.
    """
    method = WeakMethod(hook)

    def call(parameter: Tensor) -> None:
        if (ready := method()) is not None:
            ready(parameter)

    for parameter in parameters:
        if not (parameter.is_floating_point() or parameter.is_complex()):
            continue  # can never have a gradient
        trainable = parameter.requires_grad
        # torch refuses the hook on a frozen parameter, which may be unfrozen later, but keeps one that is there.
        parameter.requires_grad_(True)
        parameter.register_post_accumulate_grad_hook(call)  # type: ignore[no-untyped-call]  # torch's
        parameter.requires_grad_(trainable)
