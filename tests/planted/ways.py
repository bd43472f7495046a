"""Right code that is unusual: 59 ways to train, each with the checks that it rightly fails. It must pass all others."""

from way import Way

# A wrapper that launches collectives as gradients become ready needs the same order on all ranks.
ORDERED = {"trains[gradient_order_differs]", "trains[used_on_some_ranks]"}
# A wrapper that waits for a gradient of every parameter does not train models that leave some unused.
UNUSED = {"trains[used_on_some_ranks]", "trains[unused_parameters]"}
# A wrapper that registers its hooks once does not notice parameters that are unfrozen or frozen later.
UNFREEZES = {"trains[unfreezing_later]"}
FREEZES = {"trains[freezing_later]"}
# After an exception in forward or backward, a wrapper keeps handles of collectives from before the exception.
RECOVERS = {"trains[after_an_exception]"}
# torch's static graph takes the first step's graph for the graph of all steps, and never sends gradients of a penalty.
CHANGES = {"trains[used_in_some_steps]"}
PENALTIES = {"trains[gradient_penalty]"}
# A wrapper that averages in `.grad` must finish before the next backward adds to it.
ONCE = {"trains[accumulation_before_finishing]"}
# A wrapper whose forward decides to communicate sends only gradients that the last backward computes.
LAST = {"no_sync[unused_in_the_last_micro_batch]"}
ACCUMULATES = {"no_sync"}
# A wrapper that sends a gradient when it is first computed misses what a second, reentrant, backward adds to it.
REENTERS = {"trains[recomputed_activations]"}
# A wrapper whose forward prepares backward does not see a forward of the model inside.
FORWARD = {"trains[through_module]"}
# torch's DDP has hooks on nodes that a conversion to another dtype replaces, and buckets with the strides of wrapping.
CONVERTS = {"trains[float64]"}
RELAYS = {"trains[parameters_of_any_shape]"}
# torch's DDP looks for tensors in outputs, and finds none in objects of other classes.
OPAQUE = {"trains[other_arguments]"}
SPARSE = {"trains[sparse_gradients]"}
# A wrapper that divides the sum in float16 overflows.
RANGE = {"range_of_float16"}
# An optimizer without state_dict and load_state_dict.
RESUMES = {"state_dict[round_trip]"}
# ZeroRedundancyOptimizer and fairscale's OSS write into the state that they load.
KEEPS_WHAT_IT_LOADS = {"arguments_stay"}
# An optimizer that skips frozen parameters at construction never trains them.
DECIDES_AT_ONCE = {"trains[unfreezing_later]"}
# An optimizer that steps inside backward does not see how gradients change after backward.
LATE_GRADIENTS = {"trains[clipped_gradients]", "trains[beside_data_parallel]", "overflow_reaches_every_rank"}
ONE_DTYPE = {"trains[mixed_dtypes]"}
# ZeroRedundancyOptimizer reads a generator of parameters twice; OSS looks at the first group's first parameter.
READS_TWICE = {"groups[other_kinds]"}
EMPTY_GROUPS = {"groups[other_kinds]"}
# An optimizer that flattens the gradients of all parameters needs a gradient for each.
NEEDS_GRADIENTS = {"trains[unused_parameters]"}
# An optimizer that deals parameters out in turn ignores their sizes; if it starts each group with rank 0, also there.
BALANCES = {"state_is_balanced"}
GROUPS = {"state_is_balanced[frozen_or_in_groups]"}
# An engine that flattens all gradients has zeros for parameters that nobody uses, which weight decay then moves.
ZEROS = {"trains[unused_parameters]", "trains[used_in_some_steps]"}

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
    Way(
        "overlapped",
        "OnAccumulateGrad",
        "ddp_individual_parameters",
        ORDERED | RECOVERS | SPARSE | ONCE | REENTERS | FORWARD,
    ),
    Way(
        "overlapped",
        "WaitsForFutures",
        "ddp_individual_parameters",
        ORDERED | RECOVERS | SPARSE | ONCE | REENTERS | FORWARD,
    ),
    Way("overlapped", "BucketsInAnyOrder", "ddp", ORDERED | UNUSED | SPARSE | REENTERS | FORWARD),
    Way("overlapped", "Blocks", "naive_ddp", ORDERED | SPARSE | FORWARD),
    Way("overlapped", "hooked", "ddp_individual_parameters", ORDERED | UNFREEZES | RECOVERS | SPARSE | ONCE | REENTERS),
    Way(
        "torchs_own",
        "Replicated",
        "ddp",
        UNFREEZES | RECOVERS | UNUSED | FREEZES | FORWARD | CONVERTS | RELAYS | REENTERS,
    ),
    Way("torchs_own", "AsViews", "ddp", UNFREEZES | RECOVERS | UNUSED | FREEZES | FORWARD | CONVERTS | REENTERS),
    Way(
        "torchs_own",
        "Static",
        "ddp",
        UNFREEZES | RECOVERS | FREEZES | ACCUMULATES | CHANGES | PENALTIES | FORWARD | CONVERTS | OPAQUE | RELAYS,
    ),
    Way("torchs_own", "FindsUnused", "ddp", UNFREEZES | RECOVERS | FORWARD | CONVERTS | OPAQUE | RELAYS | REENTERS),
    Way(
        "torchs_own",
        "InManyBuckets",
        "ddp",
        UNFREEZES | RECOVERS | UNUSED | FREEZES | FORWARD | CONVERTS | RELAYS | REENTERS,
    ),
    Way(
        "torchs_own",
        "HookedByTorch",
        "ddp",
        UNFREEZES | RECOVERS | UNUSED | FREEZES | FORWARD | CONVERTS | RELAYS | REENTERS,
    ),
    Way(
        "torchs_own",
        "HookedByHand",
        "ddp",
        UNFREEZES | RECOVERS | UNUSED | FREEZES | SPARSE | FORWARD | CONVERTS | RELAYS | REENTERS,
    ),
    Way("torchs_own", "redundant", "sharded_optimizer", KEEPS_WHAT_IT_LOADS | ONE_DTYPE | READS_TWICE),
    Way("torchs_own", "redundant_in_buckets", "sharded_optimizer", KEEPS_WHAT_IT_LOADS | ONE_DTYPE | READS_TWICE),
    Way("torchs_own", "sharded", "fsdp", RECOVERS),
    Way("by_layers", "ByLayers", "fsdp", RECOVERS),
    Way("sharding", "LargestToTheLeastLaden", "sharded_optimizer", RESUMES),
    Way("sharding", "InTurn", "sharded_optimizer", RESUMES | BALANCES),
    Way("sharding", "SendsAllAtOnce", "sharded_optimizer", RESUMES),
    Way("sharding", "AddsZeros", "sharded_optimizer", RESUMES),
    Way("sharding", "GathersObjects", "sharded_optimizer", RESUMES),
    Way("sharding", "ByElement", "sharded_optimizer", RESUMES | DECIDES_AT_ONCE | NEEDS_GRADIENTS),
    Way("early", "SendsAsItSteps", "sharded_optimizer"),
    Way("early", "StepsInBackward", "sharded_optimizer", DECIDES_AT_ONCE | LATE_GRADIENTS),
    # OSS looks again at `requires_grad` only in a method of its own.
    Way(
        "fairscales",
        "sharded_by_fairscale",
        "sharded_optimizer",
        KEEPS_WHAT_IT_LOADS | DECIDES_AT_ONCE | ONE_DTYPE | EMPTY_GROUPS,
    ),
    Way(
        "torchs_own",
        "InBucketsOfASize",
        "ddp_bucketed",
        UNFREEZES | RECOVERS | UNUSED | FREEZES | FORWARD | CONVERTS | RELAYS | REENTERS,
    ),
    Way("overlapped", "BucketsOfASize", "ddp_bucketed", ORDERED | UNUSED | SPARSE | REENTERS | FORWARD),
    Way("sharding", "LargestInTurn", "sharded_optimizer", RESUMES | GROUPS),
    Way("lazy", "NothingToSkip", "naive_ddp"),
    Way("lazy", "DecidesInForward", "ddp_individual_parameters", ORDERED | SPARSE | LAST | REENTERS | FORWARD),
    Way("lazy", "TakesItsHooksOff", "ddp_individual_parameters", ORDERED | SPARSE | LAST | REENTERS | FORWARD),
    Way("lazy", "CountsItsBlocks", "ddp", ORDERED | UNUSED | SPARSE | REENTERS | FORWARD),
    Way("flat", "FlatParameter", "naive_ddp"),
    Way("averaging", "OfAPickle", "naive_ddp"),
    Way("flat", "Aligned", "flat_ddp", RANGE),
    Way("flat", "AsBytes", "flat_ddp"),
    Way("overlapped", "BucketsOfAMillionBytes", "ddp_bucketed", ORDERED | UNUSED | SPARSE | REENTERS | FORWARD),
    Way("flat", "FlagsOfTheirDtype", "flat_ddp", RANGE),
    Way("sharding", "ByElementAligned", "sharded_optimizer", RESUMES | DECIDES_AT_ONCE | NEEDS_GRADIENTS),
    Way("sharding", "EachByElementAligned", "sharded_optimizer", RESUMES | DECIDES_AT_ONCE | NEEDS_GRADIENTS),
    Way("overlapped", "FromItsOwnThread", "ddp_individual_parameters", ORDERED | RECOVERS | SPARSE | FORWARD),
    Way("overlapped", "BucketsFilledToTheByte", "ddp_bucketed", ORDERED | SPARSE | FORWARD),
    Way("overlapped", "BucketsOfAlignedGradients", "ddp_bucketed", ORDERED | UNUSED | SPARSE | REENTERS | FORWARD),
    Way("overlapped", "BucketsBesideFlags", "ddp_bucketed", ORDERED | UNUSED | SPARSE | REENTERS | FORWARD),
    Way("overlapped", "OneBucketBesideFlags", "ddp", UNUSED | SPARSE | REENTERS | FORWARD),
    Way("engines", "ByElement", "engine", ZEROS),
    Way("engines", "ReducesInBackward", "engine", ZEROS),
]
