"""Assertions about the overhead model: the formula and its optimum, on numbers met in practice.

With s bytes of gradients, bandwidth w, o seconds for each call and n_b buckets, each computed in the time that it takes
to send, what is left after backward is the last bucket and the overhead of all calls.
"""

import math
from collections.abc import Mapping

from conformance.checks.check import Violation
from conformance.checks.trial import CaseTrial
from conformance.scenarios.scenario import MIB

_EXACT, _WHOLE = 1e-6, 1.0  # relative: float32 will do; and of a bucket one byte, for they are whole


def overhead_after_backward(trial: CaseTrial) -> None:
    """Hold `ddp_overhead(s, w, o, n_b)` to s/(n_b w) + n_b o seconds."""
    s, w, o, buckets = _numbers(trial)
    mistakes = {
        "all gradients, not those of one bucket, left to send": s / w + buckets * o,
        "the overhead of one call, not of all": s / (buckets * w) + o,
        "the overhead of every call left out": s / (buckets * w),
        "the overhead of the last call left out": s / (buckets * w) + (buckets - 1) * o,
        "communication that does not overlap, of all but one bucket": s * (buckets - 1) / (buckets * w) + buckets * o,
        "w in bits": 8 * s / (buckets * w) + buckets * o,
        "milliseconds": 1e3 * (s / (buckets * w) + buckets * o),
    }
    _hold(trial, "overhead", s / (buckets * w) + buckets * o, "s", mistakes)


def bucket_size_at_the_optimum(trial: CaseTrial) -> None:
    """Hold `optimal_bucket_size(s, w, o)` to sqrt(s w o) bytes."""
    s, w, o, _ = _numbers(trial)
    best = math.sqrt(s * w * o)
    mistakes = {
        "the number of buckets, not their size": math.sqrt(s / (w * o)),
        "mebibytes, not bytes": best / MIB,
        "megabytes, not bytes": best / 1e6,
        "the bytes that one call's overhead would send": w * o,
        "the square root forgotten": s * w * o,
        "bits, not bytes": 8 * best,
    }
    _hold(trial, "bucket", best, "bytes", mistakes)


def _hold(trial: CaseTrial, name: str, expected: float, unit: str, mistakes: Mapping[str, float]) -> None:
    seen = float(trial.answers[0][name])
    if math.isclose(seen, expected, rel_tol=_EXACT, abs_tol=_WHOLE * (unit == "bytes")):
        return
    s, w, o, buckets = _numbers(trial)
    what = f"ddp_overhead(s, w, o, n_b={buckets})" if name == "overhead" else "optimal_bucket_size(s, w, o)"
    alike = "* or *".join(words for words, value in mistakes.items() if math.isclose(seen, value, rel_tol=_EXACT))
    raise Violation(
        f"With s={s:.6g} bytes, w={w:.6g} bytes/s and o={o:.6g} s, {what} gave "
        f"{'no number' if math.isnan(seen) else format(seen, '.9g')}; "
        f"expected {expected:.9g} {unit}.",
        f"Looks like *{alike}*." if alike else "",
    )


def _numbers(trial: CaseTrial) -> tuple[float, float, float, int]:
    given = trial.given[0]
    return float(given["s"]), float(given["w"]), float(given["o"]), int(given["n_b"])
