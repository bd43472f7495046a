"""Assertions about the bytes that a step sends. The last step is judged: communication has settled by then."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile

from conformance.checks.check import Violation
from conformance.checks.trial import Trial
from conformance.checks.words import listed, step_words
from conformance.protocol.messages import Happening
from conformance.scenarios.layers import BYTES
from conformance.scenarios.scenario import MIB, Scenario

_ALIGNED = 512  # bytes; the widest alignment of a tensor in a flat buffer that is not taken for numbers sent again
_REPEATED = {"send", "recv", "scatter"}  # in a ring, or from a root, a number rightly passes more than once
_AGAIN = (
    "Something is sent again, which changes no number and costs time: send each gradient once, from its hook or after "
    "backward, and start each step with nothing left to send."
)
_OWNERS = "Let each parameter's owner send it once, after all groups have been updated."


def sent_once(trial: Trial) -> None:
    """Hold each operation of a step to at most the bytes of all gradients, or of all parameters of an optimizer.

    Before backward nothing is to be sent: the models have no buffers.
    """
    if not trial.scenario.replicated:
        _hold_forward(trial)
    what, remedy = ("parameters", _OWNERS) if trial.scenario.replicated else ("gradients", _AGAIN)
    for words in _repetitions(trial):
        raise Violation(f"{words} the {what}.", remedy)


def _hold_forward(trial: Trial) -> None:
    """Hold `on_train_batch_start` and forward to sending less than half the parameters' bytes.

    Flags of parameters, and objects that ranks agree by, are shorter in models of many KiB.
    """
    whole = sum(gradient_sizes(trial.scenario))
    for rank, seen in enumerate(trial.observations):
        before = takewhile(lambda one: one.what != "began", seen.happenings[-1])
        early = [one for one in before if one.what == "launched" and one.bytes]
        if 2 * sum(one.bytes for one in early) >= whole:
            raise Violation(
                f"On rank {rank} at {last_step(trial.scenario)}, {sum(one.bytes for one in early)} bytes were sent "
                f"before backward, by {len(early)} x {listed(dict.fromkeys(one.op for one in early))}; expected "
                f"nothing of note: parameters, which have {whole} bytes, are equal on all ranks from wrapping on.",
                "Broadcast parameters from rank 0 once, when wrapping. Equal gradients then keep them equal.",
            )


def of_the_model(one: Happening, scenario: Scenario) -> bool:
    """Return whether something that happened is the launch of a collective with numbers of the model in it.

    Lossy communication sends them in any dtype that holds fractions.
    """
    fits = one.dtype in scenario.model.dtypes.values() or (scenario.lossy > 0 and "float" in one.dtype)
    return one.what == "launched" and fits and one.bytes > 0


def launches(happened: list[Happening], scenario: Scenario) -> list[int]:
    """Return which of what happened are launches of collectives with numbers of the model in them.

    Where there are none, those of raw bytes, as which numbers may travel too.
    """
    ours = [at for at, one in enumerate(happened) if of_the_model(one, scenario)]
    return ours or [at for at, one in enumerate(happened) if one.what == "launched" and one.dtype == "uint8"]


def expected_exchanges(scenario: Scenario) -> tuple[int, int]:
    """Return how few and how many exchanges of gradients a bucket size allows, however buckets are filled.

    A bucket may be closed before or after the gradient that takes it over its size, so that it holds at most that size
    and one parameter; two buckets next to one another hold more than the size, but for one more that is sent early. Or
    it is filled to the byte, and a gradient goes on in the next one.
    """
    sizes = gradient_sizes(scenario)
    capacity = math.inf if scenario.bucket_size_mb is None else scenario.bucket_size_mb * MIB
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
    return flags if flags < min(gradient_sizes(scenario), default=0) else 0


def most_bytes(scenario: Scenario, op: str) -> int:
    """Return how many bytes an operation may carry in a step.

    To the numbers of the model, some add a flag for each parameter, or align each in a flat buffer; who scatters also
    aligns what goes to each rank. An alignment takes less than 512 bytes.
    """
    sizes = gradient_sizes(scenario)
    parts = 1 + scenario.world_size if op.startswith(("reduce_scatter", "all_to_all")) else 1
    return sum(sizes) + _ALIGNED * len(sizes) * parts


def _repetitions(trial: Trial) -> Iterator[str]:
    """Yield words for each operation that carries more in the last step than there is to send, up to "bytes of all".

    After an all-reduce of everything, all ranks of its group have it: no other operation has half of that to send.
    """
    whole = sum(gradient_sizes(trial.scenario))
    for rank, seen in enumerate(trial.observations):
        sent: dict[tuple[str, str], list[int]] = {}
        for one in seen.happenings[-1]:
            if of_the_model(one, trial.scenario) and one.op not in _REPEATED:
                sent.setdefault((one.op, one.group), []).append(one.bytes)
        everywhere = {group for (op, group), sizes in sent.items() if op == "all_reduce" and sum(sizes) >= whole}
        for (op, group), sizes in sent.items():
            words = f"On rank {rank} at {last_step(trial.scenario)}, {len(sizes)} x {op} carried {sum(sizes)} bytes"
            if sum(sizes) > most_bytes(trial.scenario, op):
                yield f"{words}, {sum(sizes) / whole:.2g} times the {whole} bytes of all"
            elif group in everywhere and op != "all_reduce" and 2 * sum(sizes) > whole:
                yield f"{words}, beside an all_reduce of the {whole} bytes of all"


def last_step(scenario: Scenario) -> str:
    """Return "step 3 of 3" for the last step."""
    return step_words(scenario, scenario.steps - 1)


def gradient_sizes(scenario: Scenario) -> list[int]:
    """Return the bytes of each gradient."""
    spec = scenario.model
    return [BYTES[spec.dtypes[name]] * math.prod(spec.shapes[name]) for name in spec.trainable]
