"""All bugs that are planted in right submissions."""

from planted_branch_bugs import BRANCH_BUGS
from planted_forward_bugs import FORWARD_BUGS
from planted_further_bugs import FURTHER_BUGS
from planted_hash_bugs import HASH_BUGS
from planted_later_bugs import LATER_BUGS
from planted_machine_bugs import MACHINE_BUGS
from planted_optimizer_bugs import OPTIMIZER_BUGS
from planted_part_bugs import PART_BUGS
from planted_sharing_bugs import SHARING_BUGS
from planted_traffic_bugs import TRAFFIC_BUGS
from planted_training_bugs import TRAINING_BUGS
from planted_use_bugs import USE_BUGS
from planted_wrapper_bugs import WRAPPER_BUGS

BUGS = [
    *WRAPPER_BUGS,
    *TRAFFIC_BUGS,
    *TRAINING_BUGS,
    *OPTIMIZER_BUGS,
    *PART_BUGS,
    *FURTHER_BUGS,
    *HASH_BUGS,
    *FORWARD_BUGS,
    *SHARING_BUGS,
    *BRANCH_BUGS,
    *MACHINE_BUGS,
    *LATER_BUGS,
    *USE_BUGS,
]
