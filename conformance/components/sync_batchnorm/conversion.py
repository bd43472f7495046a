"""Checks of what converting a model's batch norms keeps: their state and options, and how they are used."""

from conformance.checks.check import Violation
from conformance.checks.compare import first_mismatch
from conformance.checks.trial import CaseTrial
from conformance.components.sync_batchnorm.whole_batch import wrong_input_gradient, wrong_output, wrong_statistics
from conformance.workload.numbers import under


def conversion_keeps_state(trial: CaseTrial) -> None:
    """Conversion replaces batch norms at any depth, and keeps names and values of parameters and buffers."""
    _hold_state(trial)


def other_norms_stay(trial: CaseTrial) -> None:
    """Norms of other kinds stay what they are: `nn.InstanceNorm2d`, which is no batch norm, and others."""
    for rank, answer in enumerate(trial.answers):
        if not bool(answer["other_norms_kept"]):
            raise Violation(
                f"On rank {rank}, conversion has replaced a norm that is no batch norm.",
                "Convert instances of `nn.BatchNorm1d`, `nn.BatchNorm2d` and `nn.BatchNorm3d` alone: their base class "
                "`_NormBase` is that of `nn.InstanceNorm2d` too.",
            )


def shared_norm_stays_shared(trial: CaseTrial) -> None:
    """A norm that the model holds at two places is one norm afterwards, too, at both of them."""
    for rank, answer in enumerate(trial.answers):
        if not bool(answer["still_shared"]):
            raise Violation(
                f"On rank {rank}, the model has one norm at two places before conversion, `1.0` and `0.again`, and two "
                "different ones afterwards.",
                "`named_modules()` names a module once, at its first place: replace it wherever `named_children()` of "
                "any module has it, by one and the same norm.",
            )


def norms_of_volumes(trial: CaseTrial) -> None:
    """Batch norms of volumes, `nn.BatchNorm3d`, are converted like those of sequences and images."""
    _hold_training(trial, "Convert `nn.BatchNorm3d` too.")


def transposed_inputs(trial: CaseTrial) -> None:
    """Inputs and gradients may lie in memory in any order, as after a transposition."""
    _hold_training(
        trial,
        "Inputs and gradients are not contiguous here: use `flatten` or `reshape`, not `view`, or sum over `dim`s.",
    )


def norm_at_the_top(trial: CaseTrial) -> None:
    """A model that is itself a batch norm is converted too: it is what is returned that is used."""
    _hold_state(trial)
    _hold_training(trial, "Return the converted norm where the module that is given is a batch norm itself.")


def without_weight_and_bias(trial: CaseTrial) -> None:
    """The option `affine=False` is kept, beside running statistics too."""
    _hold_state(trial)
    _hold_training(trial)


def without_running_statistics(trial: CaseTrial) -> None:
    """The option `track_running_stats=False` is kept, with weight and bias or without."""
    _hold_state(trial)
    _hold_training(trial)


def frozen_weight_and_bias(trial: CaseTrial) -> None:
    """A weight and a bias that do not require gradients do not after conversion, and gradients flow on to the input."""
    for rank, answer in enumerate(trial.answers):
        for name, required in under(answer, "requires_grad/").items():
            if required:
                raise Violation(
                    f"On rank {rank}, `{name}` requires a gradient after conversion; before, it was frozen.",
                    "Keep the parameters themselves, or give the new ones their `requires_grad`.",
                )
    _hold_training(trial)


def conversion_keeps_the_mode(trial: CaseTrial) -> None:
    """A model that is converted in evaluation mode is in it afterwards."""
    problem = wrong_output(trial)[0] or wrong_statistics(trial)[0]
    if problem:
        raise Violation(
            f"The model was in evaluation mode when it was converted, and nobody called `train()`. {problem}",
            "Give each converted norm the mode of the old one: `new.train(old.training)`.",
        )


def _hold_state(trial: CaseTrial) -> None:
    """Hold the state after conversion to that before."""
    start = {f"{trial.case.prefix}{name}": trial.given[0][name] for name in trial.case.state}
    for rank, answer in enumerate(trial.answers):
        kept = under(answer, "converted/")
        if set(kept) != set(start):
            raise Violation(
                f"On rank {rank}, the converted model's `state_dict` has {', '.join(sorted(kept)) or 'nothing'}; "
                f"expected {', '.join(sorted(start)) or 'nothing'}."
            )
        wrong = first_mismatch(kept, start)
        if wrong:
            raise Violation(f"On rank {rank}, conversion changed `{wrong.name}`: it {wrong.words}.")


def _hold_training(trial: CaseTrial, advice: str = "") -> None:
    """Hold outputs, gradients of inputs and running statistics to those of one process."""
    problem, fits = wrong_output(trial)
    problem = problem or wrong_input_gradient(trial)
    if not problem:
        problem, fits = wrong_statistics(trial)
    if problem:
        raise Violation(problem, " ".join(filter(None, (fits, advice))))
