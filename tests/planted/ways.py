"""Right ways to train that are unusual, each with the checks that it rightly fails; of others none may fail."""

from way import Way

ORDERED = {
    "trains[gradient_order_differs]",
    "trains[used_on_some_ranks]",
}  # asks for one order of launches on all ranks
UNUSED = {"trains[used_on_some_ranks]", "trains[unused_parameters]"}
UNFREEZES = {"trains[unfreezing_later]"}
RECOVERS = {"trains[after_an_exception]"}  # handles of what was sent before it raised must be dropped
FREEZES = {"trains[freezing_later]"}
CHANGES = {"trains[used_in_some_steps]"}  # takes the first step's graph for that of all
ONCE = {"trains[accumulation_before_finishing]"}  # averages in `.grad` itself, to which the next backward already adds
LAST = {"no_sync[unused_in_the_last_micro_batch]"}  # sends what comes in the last backward alone
ACCUMULATES = {"no_sync"}
RESUMES = {"state_dict[round_trip]"}
KEEPS_WHAT_IT_LOADS = {"arguments_stay"}  # torch's and fairscale's write into it
DECIDES_AT_ONCE = {"trains[unfreezing_later]"}  # what is frozen when the optimizer is made has no place in it
LATE_GRADIENTS = {
    "trains[clipped_gradients]",
    "trains[beside_data_parallel]",
}  # what backward leaves is not looked at again
ONE_DTYPE = {"trains[mixed_dtypes]"}  # refuses parameters of two
READS_TWICE = {"groups[other_kinds]"}  # ZeroRedundancyOptimizer trains nothing of a group that comes as a generator
SPARSE = {"trains[sparse_gradients]"}
PENALTIES = {"trains[gradient_penalty]"}  # torch's DDP with a static graph never sends anything then, without a word
RANGE = {"range_of_float16"}  # divides after adding up, and in float16
NEEDS_GRADIENTS = {"trains[unused_parameters]"}  # makes one tensor of the gradients of all parameters
BALANCES = {"state_is_balanced"}  # what parameters dealt out in turn, whatever their sizes, are rightly told to lack
# In turn, the largest of each group first: all weights may meet on one rank.
GROUPS = {"state_is_balanced[frozen_or_in_groups]"}
EMPTY_GROUPS = {"groups[other_kinds]"}  # fairscale looks at the first group's first parameter in each step

WAYS = [
    Way("averaging", "DividesFirst", "naive_ddp"),
    Way("averaging", "DividesLast", "naive_ddp", RANGE),
    Way("averaging", "Gathers", "naive_ddp"),
    Way("averaging", "ScattersAndGathers", "naive_ddp", RANGE),
    Way("averaging", "ThroughRank0", "naive_ddp", RANGE),
    Way("averaging", "AroundTheRing", "naive_ddp", RANGE),
    Way("averaging", "InDoublePrecision", "naive_ddp"),
    Way("averaging", "Functional", "naive_ddp", RANGE),
    Way("averaging", "InItsOwnGroup", "naive_ddp"),
    Way("averaging", "InPairs", "naive_ddp"),
    Way("averaging", "OfACopy", "naive_ddp"),
    Way("flat", "OneTensor", "flat_ddp", RANGE),
    Way("overlapped", "OnAccumulateGrad", "ddp_individual_parameters", ORDERED | RECOVERS | SPARSE | ONCE),
    Way("overlapped", "WaitsForFutures", "ddp_individual_parameters", ORDERED | RECOVERS | SPARSE | ONCE),
    Way("overlapped", "BucketsInAnyOrder", "ddp", ORDERED | UNUSED | SPARSE),
    Way("overlapped", "Blocks", "naive_ddp", ORDERED | SPARSE),
    Way("overlapped", "hooked", "ddp_individual_parameters", ORDERED | UNFREEZES | RECOVERS | SPARSE | ONCE),
    Way("torchs_own", "Replicated", "ddp", UNFREEZES | RECOVERS | UNUSED | FREEZES),
    Way("torchs_own", "AsViews", "ddp", UNFREEZES | RECOVERS | UNUSED | FREEZES),
    Way("torchs_own", "Static", "ddp", UNFREEZES | RECOVERS | FREEZES | ACCUMULATES | CHANGES | PENALTIES),
    Way("torchs_own", "FindsUnused", "ddp", UNFREEZES | RECOVERS),
    Way("torchs_own", "InManyBuckets", "ddp", UNFREEZES | RECOVERS | UNUSED | FREEZES),
    Way("torchs_own", "HookedByTorch", "ddp", UNFREEZES | RECOVERS | UNUSED | FREEZES),
    Way("torchs_own", "HookedByHand", "ddp", UNFREEZES | RECOVERS | UNUSED | FREEZES | SPARSE),
    Way("torchs_own", "redundant", "sharded_optimizer", KEEPS_WHAT_IT_LOADS | ONE_DTYPE | READS_TWICE),
    Way("torchs_own", "redundant_in_buckets", "sharded_optimizer", KEEPS_WHAT_IT_LOADS | ONE_DTYPE | READS_TWICE),
    Way("torchs_own", "sharded", "fsdp"),
    Way("by_layers", "ByLayers", "fsdp"),
    Way("sharding", "LargestToTheLeastLaden", "sharded_optimizer", RESUMES),
    Way("sharding", "InTurn", "sharded_optimizer", RESUMES | BALANCES),
    Way("sharding", "SendsAllAtOnce", "sharded_optimizer", RESUMES),
    Way("sharding", "AddsZeros", "sharded_optimizer", RESUMES),
    Way("sharding", "GathersObjects", "sharded_optimizer", RESUMES),
    Way("sharding", "ByElement", "sharded_optimizer", RESUMES | DECIDES_AT_ONCE | NEEDS_GRADIENTS),
    Way("early", "SendsAsItSteps", "sharded_optimizer"),
    Way("early", "StepsInBackward", "sharded_optimizer", DECIDES_AT_ONCE | LATE_GRADIENTS),
    # Has a call of its own to look again at what is frozen.
    Way(
        "fairscales",
        "sharded_by_fairscale",
        "sharded_optimizer",
        KEEPS_WHAT_IT_LOADS | DECIDES_AT_ONCE | ONE_DTYPE | EMPTY_GROUPS,
    ),
    Way("torchs_own", "InBucketsOfASize", "ddp_bucketed", UNFREEZES | RECOVERS | UNUSED | FREEZES),
    Way("overlapped", "BucketsOfASize", "ddp_bucketed", ORDERED | UNUSED | SPARSE),
    Way("sharding", "LargestInTurn", "sharded_optimizer", RESUMES | GROUPS),
    Way("lazy", "NothingToSkip", "naive_ddp"),
    Way("lazy", "DecidesInForward", "ddp_individual_parameters", ORDERED | SPARSE | LAST),
    Way("lazy", "TakesItsHooksOff", "ddp_individual_parameters", ORDERED | SPARSE | LAST),
    Way("lazy", "CountsItsBlocks", "ddp", ORDERED | UNUSED | SPARSE),
    Way("flat", "FlatParameter", "naive_ddp"),
    Way("averaging", "OfAPickle", "naive_ddp"),
    Way("flat", "Aligned", "flat_ddp", RANGE),
    Way("flat", "AsBytes", "flat_ddp"),
    Way("overlapped", "BucketsOfAMillionBytes", "ddp_bucketed", ORDERED | UNUSED | SPARSE),
    Way("flat", "FlagsOfTheirDtype", "flat_ddp", RANGE),
    Way("sharding", "ByElementAligned", "sharded_optimizer", RESUMES | DECIDES_AT_ONCE | NEEDS_GRADIENTS),
    Way("sharding", "EachByElementAligned", "sharded_optimizer", RESUMES | DECIDES_AT_ONCE | NEEDS_GRADIENTS),
    Way("overlapped", "FromItsOwnThread", "ddp_individual_parameters", ORDERED | RECOVERS | SPARSE),
    Way("overlapped", "BucketsFilledToTheByte", "ddp_bucketed", ORDERED | SPARSE),
    Way("overlapped", "BucketsOfAlignedGradients", "ddp_bucketed", ORDERED | UNUSED | SPARSE),
    Way("overlapped", "BucketsBesideFlags", "ddp_bucketed", ORDERED | UNUSED | SPARSE),
    Way("overlapped", "OneBucketBesideFlags", "ddp", UNUSED | SPARSE),
]
