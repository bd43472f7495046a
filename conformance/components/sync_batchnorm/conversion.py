"""Assertions about what converting a model's batch norms keeps: their state and options, and how they are used."""

from conformance.checks.check import Violation
from conformance.checks.compare import first_mismatch
from conformance.checks.trial import CaseTrial
from conformance.components.sync_batchnorm.assertions import no_collective_in_evaluation, normalises
from conformance.workload.numbers import under


def conversion_keeps_state(trial: CaseTrial) -> None:
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


def conversion_keeps_models(trial: CaseTrial) -> None:
    """Hold norms of other kinds, a norm at two places, and a model that is a norm itself to working as before."""
    for rank, answer in enumerate(trial.answers):
        if not bool(answer["other_norms_kept"]):
            raise Violation(
                f"On rank {rank}, conversion has replaced a norm that is no batch norm.",
                "Convert instances of `nn.BatchNorm1d`, `nn.BatchNorm2d` and `nn.BatchNorm3d` alone: their base class "
                "`_NormBase` is that of `nn.InstanceNorm2d` too.",
            )
        if trial.case.shared and not bool(answer["still_shared"]):
            raise Violation(
                f"On rank {rank}, the model has one norm at two places before conversion, `1.0` and `0.again`, and two "
                "different ones afterwards.",
                "`named_modules()` names a module once, at its first place: replace it wherever `named_children()` of "
                "any module has it, by one and the same norm.",
            )
    if trial.case.bare:
        conversion_keeps_options(trial)


def conversion_keeps_options(trial: CaseTrial) -> None:
    """Hold state, and training and evaluation with it, to those of a norm with the same options."""
    conversion_keeps_state(trial)
    normalises(trial)
    if not trial.case.tracked:
        no_collective_in_evaluation(trial)


def frozen_parameters_stay(trial: CaseTrial) -> None:
    """Hold a frozen weight and bias to requiring no gradients, and training to one process."""
    for rank, answer in enumerate(trial.answers):
        for name, required in under(answer, "requires_grad/").items():
            if required:
                raise Violation(
                    f"On rank {rank}, `{name}` requires a gradient after conversion; before, it was frozen.",
                    "Keep the parameters themselves, or give the new ones their `requires_grad`.",
                )
    normalises(trial)
