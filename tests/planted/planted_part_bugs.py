"""Bugs planted in the right submissions of `tests/conformance/parts`, each with the check that catches it first."""

from bug import Bug
from planted_data_bugs import DATA_BUGS
from planted_epoch_bugs import EPOCH_BUGS
from planted_fsdp_bugs import FSDP_BUGS
from planted_fsdp_use_bugs import FSDP_USE_BUGS
from planted_loop_bugs import LOOP_BUGS
from planted_norm_bugs import NORM_BUGS
from planted_resume_bugs import RESUME_BUGS

PART_BUGS = [
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
    Bug("overhead_model", "n_b * o", "(n_b - (n_b == 1)) * o", "overhead_of_one_bucket", "left out"),
    *DATA_BUGS,
    *LOOP_BUGS,
    *FSDP_BUGS,
    *FSDP_USE_BUGS,
    *NORM_BUGS,
    *EPOCH_BUGS,
    *RESUME_BUGS,
]
