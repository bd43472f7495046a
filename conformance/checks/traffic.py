"""Checks of what is sent: in how many collectives, and how many bytes. The last step is judged: it has settled."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile

from conformance.checks.check import Trial, Violation, advising, launches, listed, of_the_model, step_words
from conformance.checks.training import training_equals_one_process
from conformance.protocol.messages import Happening
from conformance.scenarios.layers import BYTES
from conformance.scenarios.scenario import Scenario

_MIB = 2**20
_ALIGNED = 512  # bytes; the widest alignment of a tensor in a flat buffer that is not taken for numbers sent again
_REPEATED = {"send", "recv", "scatter"}  # in a ring, or from a root, a number rightly passes more than once


def one_collective_per_dtype(trial: Trial) -> None:
    """All gradients travel together: one collective per dtype, here one."""
    for where, count in _counts(trial):
        if count != 1:
            raise Violation(
                f"{where}, {_times(count)} for {len(trial.scenario.model.trainable)} parameters of one dtype; expected "
                "one, on a flat tensor of all.",
                "Concatenate all gradients, reduce once, and copy the parts back.",
            )


def as_many_collectives_as_dtypes(trial: Trial) -> None:
    """Where parameters have two dtypes, there are two collectives, or one for both."""
    most = len(set(trial.scenario.model.dtypes.values()))
    for where, count in _counts(trial):
        if not 1 <= count <= most:
            raise Violation(
                f"{where}, {_times(count)} for {len(trial.scenario.model.trainable)} parameters of {most} dtypes; "
                f"expected at most {most}, one on a flat tensor of each dtype.",
                "Group the parameters by dtype, and concatenate the gradients of each group.",
            )


def one_collective_per_parameter(trial: Trial) -> None:
    """Every gradient travels by itself: there are as many collectives as parameters."""
    parameters = len(trial.scenario.model.trainable)
    for where, count in _counts(trial):
        if count < parameters:
            raise Violation(
                f"{where}, {_times(count)} for {parameters} parameters; expected one each.",
                "Launch an all-reduce for each parameter, from its own hook. Gradients that wait for others to travel "
                "together make a bucketed DDP.",
            )


def gradients_travel_once(trial: Trial) -> None:
    """Each gradient is sent once in a step: no operation carries more bytes than all gradients, aligned.

    The models here have no buffers: before backward there is nothing to send.
    """
    for where, early, whole in _sent_before_backward(trial):
        raise Violation(
            f"{where}, {sum(one.bytes for one in early)} bytes were sent before backward, by {len(early)} x "
            f"{listed(list(dict.fromkeys(one.op for one in early)))}; expected nothing of note: parameters, which have "
            f"{whole} bytes, are equal on all ranks from wrapping on.",
            "Broadcast parameters from rank 0 once, when wrapping. Equal gradients then keep them equal.",
        )
    for words in _repetitions(trial):
        raise Violation(
            f"{words} the gradients.",
            "Something is sent again, which changes no number and costs time: send each gradient once, from its hook "
            "or after backward, and start each step with nothing left to send.",
        )


def parameters_travel_once(trial: Trial) -> None:
    """A step of the optimizer sends each parameter once, however many groups and ranks there are."""
    for words in _repetitions(trial):
        raise Violation(
            f"{words} the parameters.", "Let each parameter's owner send it once, after all groups have been updated."
        )


def everything_frozen(trial: Trial) -> None:
    """Once every parameter is frozen, a step sends nothing and changes nothing."""
    for rank, seen in enumerate(trial.observations):
        sent = [one.op for one in seen.happenings[-1] if of_the_model(one, trial.scenario)]
        if sent:
            raise Violation(
                f"On rank {rank} at {_last(trial.scenario)}, every parameter is frozen, "
                f"and still there was something to send: {listed(sent)}.",
                "Only what has a gradient needs to be sent; where nothing has one, do nothing.",
            )
    training_equals_one_process(trial)


def bucket_size_respected(trial: Trial) -> None:
    """`bucket_size_mb` decides how many collectives there are: many with small buckets, one with a large one."""
    sizes = _sizes(trial.scenario)
    fewest, most = expected_exchanges(trial.scenario)
    capacity = (trial.scenario.bucket_size_mb or 0.0) * _MIB
    for where, count in _counts(trial):
        if not fewest <= count <= most:
            raise Violation(
                f"{where} with bucket_size_mb={trial.scenario.bucket_size_mb:.3g} ({capacity:.0f} bytes) and "
                f"parameters of {', '.join(map(str, sizes))} bytes, {_times(count)}; expected {_span(fewest, most)}.",
                "A bucket is full when the next gradient would take it over bucket_size_mb * 1024 * 1024 bytes; count "
                "`p.numel() * p.element_size()`, and start the next bucket from zero.",
            )


def bucket_size_of_what_trains(trial: Trial) -> None:
    """Frozen parameters, which have nothing to send, take no room in buckets."""
    with advising("Frozen parameters lie between the others here: leave them out when buckets are filled."):
        bucket_size_respected(trial)


def bucket_of_each_dtype(trial: Trial) -> None:
    """Where layers of two dtypes alternate, one bucket of each is open at a time, or one for both."""
    with advising("Keep one bucket open for each dtype: who closes it where the dtype changes has many small ones."):
        as_many_collectives_as_dtypes(trial)


def unbounded_bucket(trial: Trial) -> None:
    """`bucket_size_mb=None` means one bucket of unbounded size: training is right, with one collective."""
    for where, count in _counts(trial):
        if count != 1:
            raise Violation(
                f"{where} with bucket_size_mb=None, {_times(count)}; expected one for everything.",
                "None means that no bucket is ever full before the last gradient is in it.",
            )
    training_equals_one_process(trial)


def expected_exchanges(scenario: Scenario) -> tuple[int, int]:
    """Return how few and how many exchanges of gradients a bucket size allows, however buckets are filled.

    A bucket may be closed before or after the gradient that takes it over its size, so that it holds at most that size
    and one parameter; two buckets next to one another hold more than the size, but for one more that is sent early. Or
    it is filled to the byte, and a gradient goes on in the next one.
    """
    sizes = _sizes(scenario)
    capacity = math.inf if scenario.bucket_size_mb is None else scenario.bucket_size_mb * _MIB
    if sum(sizes) <= capacity:
        return 1, 1
    fewest, filled = math.ceil(sum(sizes) / (capacity + max(sizes))), math.ceil(sum(sizes) / capacity)
    return fewest, max(filled, min(len(sizes), 2 * filled))


def exchanges(happened: list[Happening], scenario: Scenario) -> int:
    """Return how many times gradients were exchanged.

    An exchange may take two operations (reduce-scatter, then all-gather), so of each dtype the most frequent one is
    counted. What carries a flag of each parameter is not: of another dtype than the model's, or too short for any
    gradient.
    """
    sent = [happened[at] for at in launches(happened, scenario)]
    ops = Counter((one.dtype, one.op) for one in sent if one.bytes > longest_flags(scenario, one.dtype))
    return sum(max(n for (own, _), n in ops.items() if own == dtype) for dtype in {dtype for dtype, _ in ops})


def longest_flags(scenario: Scenario, dtype: str) -> int:
    """Return the bytes of a flag for each parameter, in a dtype of the model; 0 where a gradient may be as short."""
    flags = len(scenario.model.trainable) * next((size for known, size in BYTES.items() if known == dtype), 0)
    return flags if flags < min(_sizes(scenario), default=0) else 0


def most_bytes(scenario: Scenario, op: str) -> int:
    """Return how many bytes an operation may carry in a step.

    To the numbers of the model, some add a flag for each parameter, or align each in a flat buffer; who scatters also
    aligns what goes to each rank. An alignment takes less than 512 bytes.
    """
    sizes = _sizes(scenario)
    parts = 1 + scenario.world_size if op.startswith(("reduce_scatter", "all_to_all")) else 1
    return sum(sizes) + _ALIGNED * len(sizes) * parts


def model_bytes(scenario: Scenario) -> int:
    """Return the bytes of all parameters that train."""
    return sum(_sizes(scenario))


def _repetitions(trial: Trial) -> Iterator[str]:
    """Yield words for each operation that carries more in the last step than there is to send, up to "bytes of all".

    After an all-reduce of everything, all ranks of its group have it: no other operation has half of that to send.
    """
    whole = model_bytes(trial.scenario)
    for rank, seen in enumerate(trial.observations):
        sent: dict[tuple[str, str], list[int]] = {}
        for one in seen.happenings[-1]:
            if of_the_model(one, trial.scenario) and one.op not in _REPEATED:
                sent.setdefault((one.op, one.group), []).append(one.bytes)
        everywhere = {group for (op, group), sizes in sent.items() if op == "all_reduce" and sum(sizes) >= whole}
        for (op, group), sizes in sent.items():
            words = f"On rank {rank} at {_last(trial.scenario)}, {len(sizes)} x {op} carried {sum(sizes)} bytes"
            if sum(sizes) > most_bytes(trial.scenario, op):
                yield f"{words}, {sum(sizes) / whole:.2g} times the {whole} bytes of all"
            elif group in everywhere and op != "all_reduce" and 2 * sum(sizes) > whole:
                yield f"{words}, beside an all_reduce of the {whole} bytes of all"


def _sent_before_backward(trial: Trial) -> Iterator[tuple[str, list[Happening], int]]:
    """Yield words for each rank that sends half the parameters' bytes or more before backward, what, and all bytes.

    That is in `on_train_batch_start` or in forward.

    Flags of parameters, and objects that ranks agree by, are shorter in models of many KiB.
    """
    whole = model_bytes(trial.scenario)
    for rank, seen in enumerate(trial.observations):
        before = takewhile(lambda one: one.what != "began", seen.happenings[-1])
        early = [one for one in before if one.what == "launched" and one.bytes]
        if 2 * sum(one.bytes for one in early) >= whole:
            yield f"On rank {rank} at {_last(trial.scenario)}", early, whole


def _counts(trial: Trial) -> Iterator[tuple[str, int]]:
    """Yield words for each rank in the last step, and how many times it exchanged gradients."""
    for rank, seen in enumerate(trial.observations):
        yield f"On rank {rank} at {_last(trial.scenario)}", exchanges(seen.happenings[-1], trial.scenario)


def _last(scenario: Scenario) -> str:
    return step_words(scenario, scenario.steps - 1)


def _sizes(scenario: Scenario) -> list[int]:
    """Return the bytes of each gradient."""
    spec = scenario.model
    return [BYTES[spec.dtypes[name]] * math.prod(spec.shapes[name]) for name in spec.trainable]


def _span(fewest: int, most: int) -> str:
    return str(most) if fewest == most else f"{fewest} to {most}"


def _times(count: int) -> str:
    return {0: "no collective was launched", 1: "one collective was launched"}.get(
        count, f"{count} collectives were launched"
    )
