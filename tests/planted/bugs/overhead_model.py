"""Bugs in the formulas of the communication overhead."""

from bug import Bug

BUGS = [
    Bug("overhead_model", "s / (n_b * w)", "s / w", "overhead_after_backward", "all gradients, not those of one"),
    Bug("overhead_model", "n_b * o", "o", "overhead_after_backward", "the overhead of one call"),
    Bug(
        "overhead_model",
        "return math.sqrt(s * w * o)",
        "return math.sqrt(s / (w * o))",
        "bucket_size_at_the_optimum",
        "the number of buckets",
    ),
    Bug("overhead_model", "return math.sqrt(s * w * o)", "pass", "bucket_size_at_the_optimum", "gave no number"),
    Bug("overhead_model", "n_b * o", "(n_b - (n_b == 1)) * o", "overhead_after_backward[one_bucket]", "left out"),
]
