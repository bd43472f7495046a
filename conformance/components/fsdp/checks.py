"""Checks of fully sharded data parallelism: training as in one process, while no rank keeps more than its share."""

from dataclasses import replace

from conformance.checks.check import Violation
from conformance.checks.compare import MISSING, first_mismatch
from conformance.checks.trial import CaseTrial
from conformance.checks.words import WAIT, listed, never_awaited
from conformance.components.fsdp.case import FsdpCase
from conformance.oracle.tolerance import Limits, difference
from conformance.oracle.training import Trajectory, outputs_before
from conformance.oracle.training import train as train_in_one_process
from conformance.workload.numbers import RankInputs, Tensors, under

UNEVEN_WEIGHTS = (
    "Weights here have rows or elements that the number of ranks does not divide. Pad the flattened weight and its "
    "gradient up to a multiple of it, and cut off what was padded."
)

SINGLE = 1e-4  # of the largest update; what rounding to float32 makes of small networks is a third of it

_WHOLE = "All-gather the shards in rank order, cut off what was padded, and give them their shape again."
_NAMES = (
    "Return every parameter under the bare module's own name, as `named_parameters()` gave it before wrapping: take "
    "out of names what wrapping has put into them."
)
_ANEW = (
    "Nothing but forward and backward gathers between these steps: are whole weights freed after their use, and "
    "gathered anew in the next forward?"
)


def shards_are_waited_for(trial: CaseTrial) -> None:
    """What a collective gives is used only after somebody has waited for it.

    Here results arrive with the wait, and not before; who reads them too early finds NaN, every time.
    """
    moments = {"start/": "before training"}
    moments |= {f"parameter/{step}/": f"after step {step + 1} of {trial.case.steps}" for step in trial.case.gathered}
    for moment, words in moments.items():
        for rank, answer in enumerate(trial.answers):
            unset = [name for name, value in under(answer, moment).items() if not bool(value.isfinite().all())]
            if unset:
                raise Violation(
                    f"On rank {rank} {words}, the whole parameter {listed(unset)} is NaN or infinite: what goes into "
                    "it was read before anybody waited for the collective that gives it, or computed so."
                    f"{never_awaited(trial.unawaited(rank))}",
                    WAIT,
                )


def gathers_whole_parameters(trial: CaseTrial) -> None:
    """`fsdp_gather_full_params` returns every parameter whole, under the bare module's names, on every rank."""
    for rank, answer in enumerate(trial.answers):
        wrong = first_mismatch(under(answer, "start/"), under(trial.given[0], "weight/"))
        if wrong:
            raise Violation(
                f"On rank {rank} before training, the whole parameter `{wrong.name}` {wrong.words}.",
                _NAMES if wrong.words == MISSING else _WHOLE,
            )


def sharded_training_equals_one_process(trial: CaseTrial) -> None:
    """After every step, the whole parameters equal those of one process on the concatenated batches."""
    _hold_training(
        trial,
        "Are gradients averaged over the ranks, not summed, and is the shard that the optimizer steps what the next "
        "forward gathers?",
    )


def parts_of_any_shape(trial: CaseTrial) -> None:
    """Weights train that the ranks cannot divide evenly, and those with fewer rows than there are ranks."""
    _hold_training(trial, UNEVEN_WEIGHTS)


def trains_in_float64(trial: CaseTrial) -> None:
    """A model in float64 trains to the precision of float64."""
    _hold_training(trial, "Keep the module's own dtype, also where that is not float32, or refuse it by an exception.")


def biases(trial: CaseTrial) -> None:
    """A linear layer may have a bias, which trains too."""
    _hold_training(trial, "Average the gradient of what is not sharded, also in a layer whose weight is.")


def starts_from_rank_0(trial: CaseTrial) -> None:
    """Where ranks start from different weights, training starts from those of rank 0."""
    for rank, answer in enumerate(trial.answers):
        wrong = first_mismatch(under(answer, "start/"), under(trial.given[0], "weight/"))
        if wrong:
            raise Violation(
                f"On rank {rank} before training, `{wrong.name}` is not rank 0's: it {wrong.words}.",
                "Broadcast parameters from rank 0 before sharding them.",
            )


def accumulates_gradients(trial: CaseTrial) -> None:
    """Several backwards before a step add up, on the shards."""
    _hold_training(
        trial, "Here two backwards go before each step: add what the second one gives to the shard's gradient."
    )


def cleared_after_forward(trial: CaseTrial) -> None:
    """Gradients may be cleared between forward and backward, as many training loops do."""
    _hold_training(
        trial, "`zero_grad` comes after forward here: let backward add nothing to a gradient that was cleared."
    )


def non_contiguous_parameter(trial: CaseTrial) -> None:
    """A weight that is not contiguous is taken from rank 0, and trains, like any other."""
    starts_from_rank_0(trial)
    _hold_training(trial, "A linear layer's weight is stored transposed: `.contiguous()` makes a copy of it.")


def several_forwards_one_backward(trial: CaseTrial) -> None:
    """Several forwards may have one backward, on the sum of their losses, as where two inputs are compared."""
    _hold_training(
        trial,
        "Two forwards go before one backward, which needs each weight twice: gather it for each use that backward "
        "comes to, and add up the gradients of both.",
    )


def layer_used_twice(trial: CaseTrial) -> None:
    """A layer may compute more than once in a forward: its gradient is that of all its uses."""
    _hold_training(
        trial,
        "A linear layer computes twice in each forward: gather its weight for each use, also in backward, and add up "
        "the gradients of both.",
    )


def trains_in_evaluation_mode(trial: CaseTrial) -> None:
    """Training is right in evaluation mode too, in which models train whose norms are to stay at rest."""
    _hold_training(trial, "`eval()` was called on the wrapped model: gather, and average gradients, in either mode.")


def unused_everywhere(trial: CaseTrial) -> None:
    """A parameter that no rank uses is left alone by the optimizer, and nobody waits for its gradient."""
    _hold_training(
        trial,
        "A linear layer is never called: its shard gets no gradient, on any rank. One of zeros would let weight decay "
        "move it.",
    )


def forward_keywords(trial: CaseTrial) -> None:
    """Keyword arguments reach the module's forward."""
    sharded_training_equals_one_process(trial)


def evaluation_between_steps(trial: CaseTrial) -> None:
    """A forward without gradients, between two steps, gives the model's output, and changes nothing."""
    inputs, expected = _inputs(trial), expected_of(trial)
    scenario = _in_float64(trial).scenario
    for step in range(trial.case.steps):
        outputs = outputs_before(scenario, inputs, expected, step)
        for rank, (answer, wanted) in enumerate(zip(trial.answers, outputs, strict=True)):
            limits = {"output": SINGLE * float(wanted.abs().max())}
            wrong = first_mismatch({"output": answer[f"evaluation/{step}"]}, {"output": wanted}, limits)
            if wrong:
                raise Violation(
                    f"On rank {rank} before step {step + 1} of {trial.case.steps}, the output of a forward without "
                    f"gradients is not that of the model as it is by then: it {wrong.words}.",
                    "Gather whole weights anew in each forward, without gradients too, and free them after.",
                )
    sharded_training_equals_one_process(trial)


def frozen_parameters_stay(trial: CaseTrial) -> None:
    """What does not require gradients before wrapping is not trained, and the rest is."""
    _hold_training(
        trial,
        "A linear layer's weight does not require gradients, and its bias does. The weight must not get one; it has to "
        "be gathered for backward all the same, and to be freed, though no hook on its gradient is called.",
    )


def frozen_parameters_from_rank_0(trial: CaseTrial) -> None:
    """Where ranks start from different weights, rank 0's are taken also of what does not train."""
    starts_from_rank_0(trial)


def buffers_reach_forward(trial: CaseTrial) -> None:
    """Buffers, those that are not in `state_dict` too, have the module's own values in forward."""
    _hold_training(
        trial,
        "Forward adds buffers to the output. Leave them as they are, on every rank, whole: buffers are neither sharded "
        "nor reduced; and where the module is made anew, copy those that are not persistent, too.",
    )


def tied_parameters(trial: CaseTrial) -> None:
    """A weight that two layers share stays one: its gradient is that of both uses, and both see what is updated."""
    _hold_training(
        trial,
        "Two layers share a weight. Shard each parameter once, whatever modules hold it, and gather it for all of "
        "them; `named_parameters()` gives it once.",
    )


def scalar_parameter(trial: CaseTrial) -> None:
    """A parameter without dimensions trains like any other."""
    _hold_training(
        trial,
        "A parameter has no dimensions: keep it whole and average its gradient, or refuse it by an exception.",
    )


def _hold_training(trial: CaseTrial, advice: str) -> None:
    """Hold the whole parameters after every step to those of one process, where they are gathered."""
    expected = expected_of(trial).parameters
    if trial.case.seldom_gathered:
        advice = f"{_ANEW} {advice}"
    for step in trial.case.gathered:
        limits = _limits(trial, expected[step])
        for rank, answer in enumerate(trial.answers):
            wrong = first_mismatch(under(answer, f"parameter/{step}/"), expected[step], limits)
            if wrong:
                raise Violation(
                    f"On rank {rank} after step {step + 1} of {trial.case.steps}, the parameter `{wrong.name}` is not "
                    f"what training in one process gives: it {wrong.words}.",
                    advice,
                )


def _limits(trial: CaseTrial, expected: Tensors) -> Limits | None:
    """Return how far rounding to float32 may take parameters; nothing for float64."""
    if trial.case.dtype == "float64":
        return None
    return dict.fromkeys(expected, SINGLE * most_moved(expected, under(trial.given[0], "weight/")))


def most_moved(after: Tensors, start: Tensors) -> float:
    """Return how far the number has moved that has moved most."""
    return max(difference(value, start[name], 0.0).absolute for name, value in after.items())


def expected_of(trial: CaseTrial) -> Trajectory:
    """Return what one process gives, in double precision."""
    return train_in_one_process(_in_float64(trial).scenario, _inputs(trial))


def _in_float64(trial: CaseTrial) -> FsdpCase:
    case: FsdpCase = replace(trial.case, dtype="float64")
    return case


def _inputs(trial: CaseTrial) -> list[RankInputs]:
    """Return what each rank was given, in double precision."""
    batches = range(trial.case.steps * trial.case.micro_batches)
    return [
        RankInputs(
            under(given, "weight/"), under(given, "buffer/"), tuple((given[f"x/{m}"], given[f"y/{m}"]) for m in batches)
        )
        for given in (_in_double(one) for one in trial.given)
    ]


def _in_double(given: Tensors) -> Tensors:
    return {name: value.double() if value.is_floating_point() else value for name, value in given.items()}
