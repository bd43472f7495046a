"""Checks of wrappers that ask for more than the assignment does: what torch's own promises, or some of it."""

import torch

from conformance.checks.check import (
    NotOffered,
    Trial,
    Violation,
    advising,
    first_mismatch,
    generators_listed,
    listed,
    step_words,
)
from conformance.checks.training import (
    gradients_averaged,
    initial_broadcast,
    ranks_stay_identical,
    training_equals_one_process,
)
from conformance.scenarios.scenario import LoadWeights


def buffers_broadcast(trial: Trial) -> None:
    """Every rank holds rank 0's buffers after wrapping, integer and non-persistent ones too, and trains with them."""
    for rank, seen in enumerate(trial.observations):
        for name, wanted in trial.inputs[0].buffers.items():
            value = seen.buffers.get(name)
            if value is not None and value.dtype != wanted.dtype:
                raise Violation(
                    f"Right after wrapping, the buffer `{name}` on rank {rank} has the dtype {value.dtype}; expected "
                    f"{wanted.dtype}, as in the module.",
                    "Send each buffer in its own dtype, and write into it in place.",
                )
            if value is None or not torch.equal(value, wanted):
                raise Violation(
                    f"Right after wrapping, the buffer `{name}` on rank {rank} is not rank 0's: seen "
                    f"{value if value is None else value.tolist()}, expected {wanted.tolist()}.",
                    "Broadcast `module.buffers()` as well as `module.parameters()`.",
                )
    with advising(
        "The model adds its buffers to its output: does a forward change them? Leave them alone, or copy rank 0's."
    ):
        gradients_averaged(trial)


def wrapping_makes_no_gradients(trial: Trial) -> None:
    """Wrapping leaves `grad` at None: a gradient of zeros would let an optimizer move what is not used."""
    for rank, seen in enumerate(trial.observations):
        if seen.early_gradients:
            raise Violation(
                f"Right after wrapping, on rank {rank}, {listed(seen.early_gradients)} had a gradient already; "
                "expected None.",
                "Do not touch `.grad` before backward has been there: buffers for communication can be made apart.",
            )


def mode_reaches_the_model(trial: Trial) -> None:
    """`train()` and `eval()` of the wrapped model reach the model, and a forward does not change its mode."""
    for rank, seen in enumerate(trial.observations):
        if seen.wrong_modes:
            asked = "evaluation" if seen.wrong_modes[0] == "training" else "training"
            raise Violation(
                f"On rank {rank}, a forward in {asked} mode ran with the model in {seen.wrong_modes[0]} mode.",
                "A wrapper that is an `nn.Module` with the model as a submodule passes `train()` and `eval()` on by "
                "itself: override neither, and call neither.",
            )


def calls_the_model_once(trial: Trial) -> None:
    """A forward of the wrapped model calls the model, with the hooks that it has, and does so once."""
    made = trial.scenario.steps * (2 if trial.scenario.evaluates else 1)
    for rank, seen in enumerate(trial.observations):
        if seen.forwards != made:
            raise Violation(
                f"On rank {rank}, the model was called {seen.forwards} times in {made} forwards of the wrapped model.",
                "Let the wrapper's `forward` return `self.module(*args, **kwargs)`: `self.module.forward(...)` passes "
                "over the model's hooks, and a second call moves dropout and running statistics once more.",
            )


def many_parameters(trial: Trial) -> None:
    """A model may have more than a hundred parameters: all of them are averaged."""
    with advising("There are more than a hundred parameters: is what is under way kept in something of fixed length?"):
        gradients_averaged(trial)


def two_models_side_by_side(trial: Trial) -> None:
    """Two wrapped models whose forwards and backwards alternate have nothing to do with one another."""
    advice = (
        "Another model was wrapped and trained beside it. Keep what belongs to one wrapper in that object, not in its "
        "class or in a global of the module."
    )
    with advising(advice):
        gradients_averaged(trial)
    for step in range(trial.scenario.steps):
        for rank, seen in enumerate(trial.observations):
            other = first_mismatch(seen.twin(step), trial.expected.gradients[0], trial.expected.gradient_limits[0])
            if other:
                raise Violation(
                    f"On rank {rank} at {step_words(trial.scenario, step)}, the gradient of `{other.name}` of a second "
                    f"wrapped model is not the average over the ranks: it {other.words}.",
                    advice,
                )


def empty_parameter(trial: Trial) -> None:
    """A parameter without elements is no hindrance."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def nested_arguments(trial: Trial) -> None:
    """Tensors in tuples and dicts reach the model's `forward`, and come back from it."""
    gradients_averaged(trial)


def positional_arguments(trial: Trial) -> None:
    """All positional arguments reach the model's `forward`."""
    gradients_averaged(trial)


def forward_without_gradients(trial: Trial) -> None:
    """A forward under `torch.no_grad()` between forward and backward changes nothing, as where targets are computed."""
    with advising(
        "Between this forward and its backward, the model was called under `torch.no_grad()`: such a call must leave "
        "alone what the one before has prepared for backward."
    ):
        gradients_averaged(trial)
        training_equals_one_process(trial)


def accumulates_gradients(trial: Trial) -> None:
    """Gradients of several backward passes, each followed by `on_after_backward`, add up to the average of the sums."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def accumulates_before_finishing(trial: Trial) -> None:
    """Several backward passes may come before one `on_after_backward`; no `no_sync` is needed for right numbers."""
    with advising(
        "Two backward passes come before `on_after_backward` here. What the first one has sent is out of date by then: "
        "send the sum again, and leave `.grad` alone while a collective works on it."
    ):
        gradients_averaged(trial)
        training_equals_one_process(trial)


def several_forwards_one_backward(trial: Trial) -> None:
    """Several forwards may have one backward, on the sum of their losses, as where two inputs are compared."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def recomputed_activations(trial: Trial) -> None:
    """Activations that backward computes again (`torch.utils.checkpoint`, not reentrant) change nothing."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def gradient_penalty(trial: Trial) -> None:
    """A loss may hold the outputs' gradient by the inputs (`create_graph=True`): backward goes through that too."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def recovers_from_an_exception(trial: Trial) -> None:
    """After a backward pass that raised on all ranks, and `zero_grad`, training goes on as if it had not been."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def loaded_weights_are_trained(trial: Trial) -> None:
    """Training goes on from what the wrapped model's `load_state_dict` loads, here its own `state_dict` of before."""
    if not all(seen.offers_state_dict for seen in trial.observations):
        raise NotOffered("the wrapped model has no `state_dict`")
    loaded = next(event.step for event in trial.scenario.schedule if isinstance(event, LoadWeights))
    for step in range(loaded, trial.scenario.steps):
        for rank, seen in enumerate(trial.observations):
            if lost := [name for name in trial.expected.gradients[step] if name not in seen.gradients(step)]:
                raise Violation(
                    f"On rank {rank} at {step_words(trial.scenario, step)}, after `load_state_dict` of the wrapped "
                    f"model, {listed(lost)} had no gradient: the optimizer's parameters are no longer the model's.",
                    "Load into the parameters in place, as `nn.Module.load_state_dict` does without `assign=True`.",
                )
    training_equals_one_process(trial)


def large_parameter(trial: Trial) -> None:
    """A parameter of more than 2^20 elements trains to its last one, in a bucket of 1 MiB or of 25."""
    with advising(
        "A parameter here has 1049600 elements, more than 2**20. Is there a limit to what is sent at once, or a "
        "remainder that is lost where something is sent in pieces?"
    ):
        initial_broadcast(trial)
        gradients_averaged(trial)
        training_equals_one_process(trial)


def parameter_with_gaps(trial: Trial) -> None:
    """A parameter with gaps in memory between its rows, as a slice of columns has, trains like any other."""
    with advising("A weight here is some columns of a wider one. Send a contiguous copy, and copy the result back."):
        initial_broadcast(trial)
        gradients_averaged(trial)
        training_equals_one_process(trial)


def named_tuples(trial: Trial) -> None:
    """A named tuple reaches the model's `forward`, and comes back from it, as what it is."""
    gradients_averaged(trial)


def uneven_sparse_gradients(trial: Trial) -> None:
    """Sparse gradients may have other numbers of rows on other ranks, as where batches have different sizes."""
    gradients_averaged(trial)
    training_equals_one_process(trial)
    ranks_stay_identical(trial)


def wrapping_leaves_the_generators(trial: Trial) -> None:
    """Wrapping leaves the global generators as they were: torch's, Python's and NumPy's."""
    for rank, seen in enumerate(trial.observations):
        if seen.generators:
            raise Violation(
                f"On rank {rank}, wrapping moved a global generator of random numbers, "
                f"{generators_listed(seen.generators)}; expected all of them as they were.",
                "What is drawn afterwards, such as dropout, depends on it, and ranks that share a seed draw alike: "
                "make a generator of your own (`torch.Generator()`, `random.Random()`), and seed that.",
            )


def trains_in_evaluation_mode(trial: Trial) -> None:
    """Backward synchronises in evaluation mode too, in which models train whose norms are to stay at rest."""
    gradients_averaged(trial)
    training_equals_one_process(trial)


def cleared_after_forward(trial: Trial) -> None:
    """Gradients may be cleared between forward and backward, as many training loops do."""
    with advising("`zero_grad` comes after forward here: put nothing into `.grad` before backward has begun."):
        gradients_averaged(trial)
        training_equals_one_process(trial)


def overflow_reaches_every_rank(trial: Trial) -> None:
    """Where one rank's gradient is infinite or NaN, all ranks see that: a scaler then skips the step on all."""
    broken = [name for name, value in trial.expected.gradients[0].items() if not bool(value.isfinite().all())]
    for rank, seen in enumerate(trial.observations):
        found = seen.gradients(0)
        hidden = [name for name in broken if name not in found or bool(found[name].isfinite().all())]
        if hidden:
            raise Violation(
                f"Rank {trial.scenario.world_size - 1} has infinite losses; on rank {rank}, the gradients of "
                f"{listed(hidden)} are finite all the same, or there are none.",
                "Average what there is: put no number in place of what is infinite or NaN, and leave nobody out.",
            )


def sparse_gradients(trial: Trial) -> None:
    """Sparse gradients, as `nn.Embedding(sparse=True)` gives them, are averaged like others."""
    gradients_averaged(trial)
    training_equals_one_process(trial)
    ranks_stay_identical(trial)


def complex_parameter(trial: Trial) -> None:
    """A parameter of complex numbers trains like any other."""
    initial_broadcast(trial)
    gradients_averaged(trial)
    training_equals_one_process(trial)
    ranks_stay_identical(trial)


def range_of_float16(trial: Trial) -> None:
    """Gradients that float16 can hold have an average that it can hold, though it cannot hold their sum."""
    for rank, seen in enumerate(trial.observations):
        for name, gradient in seen.gradients(0).items():
            if not torch.isfinite(gradient).all():
                own = float(trial.expected.gradients[0][name].abs().max())
                raise Violation(
                    f"On rank {rank}, the average of the float16 gradients of `{name}` is not finite: seen "
                    f"{gradient.tolist()}, though it is no larger than {own:.0f}; float16 holds up to 65504.",
                    "Divide by the number of ranks before adding up, not afterwards, or send gradients in float32.",
                )
    gradients_averaged(trial)
