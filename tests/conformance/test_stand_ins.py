"""A stand-in for an absent package serves code that does not compute with it; any other use names it."""

import pytest
import torch

from conformance.ranks.stand_ins import AbsentPackage

absent = AbsentPackage("absent")


def test_decorators_leave_functions_alone():
    def function(): ...

    assert absent.jit(function) is function
    assert absent.autotune([1, 2], key=["n"])(function) is function
    assert absent.annotate("forward")(function) is function


def test_a_progress_bar_yields_what_it_is_given():
    bar = absent.tqdm(range(3), desc="training")
    assert list(bar) == [0, 1, 2]
    bar.set_postfix(loss=1.0)
    assert list(absent.tqdm([4])) == [4]


def test_contexts_base_classes_and_types():
    with absent.annotate("forward") as span:
        span.close()

    class Model(absent.LightningModule):
        size: absent.Float["batch"]  # noqa: F821  an annotation

    assert not isinstance(Model(), absent.PreTrainedModel)
    assert isinstance(Model(), (absent.PreTrainedModel, Model))


@pytest.mark.parametrize(
    "use",
    [
        "torch.ones(2) + absent.rearrange(torch.ones(2), 'n -> n')",
        "torch.ones(2).copy_(absent.softmax(torch.ones(2)))",
        "torch.add(absent.weight, 1)",
        "list(absent.softmax(torch.ones(2)))",
        "tuple(absent.prepare([1], [2]))",
        "absent.memory() / 2",
        "float(absent.memory())",
        "len(absent.files)",
        "absent.version < 2",
        "f'{absent.memory():.2f}'",
        "absent.__version__",
    ],
)
def test_what_computes_with_it_is_told_apart_from_other_errors(use):
    with pytest.raises((TypeError, AttributeError), match="AbsentPackage"):
        eval(use, {"absent": absent, "torch": torch})  # noqa: S307
