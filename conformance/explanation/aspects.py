"""What checks are about, by the name of their aspect; where there is no entry, the theme has one."""

from collections.abc import Mapping

from conformance.checks.words import ONE_FILE, TENSOR_HOOK
from conformance.explanation.pictures import held, over_time
from conformance.explanation.topic import Topic

_OWNERS = held(
    "parameter | bytes | owner  | state (2 moments)",
    "w1        | 8 MB  | rank 0 | 16 MB on rank 0",
    "w2        | 5 MB  | rank 1 | 10 MB on rank 1",
    "w3        | 4 MB  | rank 1 | 8 MB on rank 1",
    "b1, b2    | 0.1 MB| rank 0 | 0.2 MB on rank 0",
    says="Each rank keeps the state of its own parameters only: 16.2 and 18 MB, instead of 34.2 MB on both.",
)
_ACCUMULATED = over_time(
    ("rank 0", "[micro 1: local][micro 2: local][micro 3][all-reduce the sum][step]"),
    ("rank 1", "[micro 1: local][micro 2: local][micro 3][all-reduce the sum][step]"),
    says="Gradients of the first passes only add up in `.grad`; the last pass sends the whole sum, once.",
)
_SHARDS = held(
    "rows of the weight | rank 0 | rank 1",
    "0 to 511           | keeps  | -",
    "512 to 1023        | -      | keeps",
    "in forward         | whole  | whole, gathered and then freed",
    "gradient           | its rows | its rows, after a reduce-scatter",
)

OF_ASPECTS: Mapping[str, Topic] = {
    "gradients are averaged": Topic(
        "Each rank sees another part of the batch. Only the average of all ranks' gradients is the gradient of the "
        "whole batch; with anything else, the ranks train models that drift apart.",
        ("never synchronised", "summed, not averaged", "divided twice", "divided, never added up", "counted twice"),
        held(
            "            | rank 0 | rank 1 | rank 2",
            "own gradient| 1.0    | 4.0    | 1.0",
            "sum         | 6.0    | 6.0    | 6.0",
            "average     | 2.0    | 2.0    | 2.0",
            says="The optimizer of every rank steps with 2.0, as one process does on the whole batch.",
        ),
    ),
    "ranks start equal": Topic(
        "Equal gradients keep models equal only if the models were equal at first. Ranks draw different initial "
        "weights, unless somebody seeds them alike.",
        (
            "Parameters that do not require gradients are forgotten: they must be equal, too.",
            "A copy is sent, and the result is not written back: broadcast `p.data`, or copy the result into it.",
        ),
        over_time(
            ("rank 0", "w = 0.3 [broadcast ->] w = 0.3   the same model on every rank"),
            ("rank 1", "w = 0.9 [broadcast <-] w = 0.3"),
        ),
    ),
    "one flat tensor": Topic(
        "Each collective costs a fixed time, and more for each byte. A hundred small ones cost that fixed time a "
        "hundred times.",
        (
            "Gradients of another dtype do not fit into the same tensor: make one tensor for each dtype.",
            "A gradient is sent twice in a step, or parameters are sent again in each step.",
        ),
        over_time(
            ("naive", "[all-reduce w1][all-reduce w2][all-reduce w3][step]"),
            ("flat", "[all-reduce w1 w2 w3][step]"),
        ),
    ),
    "overlap with backward": Topic(
        "The network can work while backward computes. A wrapper that sends everything after backward makes every "
        "processor wait for the network in every step.",
        (
            TENSOR_HOOK,
            "`wait()` is called in the hook: backward stands still until the collective is over.",
            "A gradient is sent twice in a step: from its hook, and again after backward.",
        ),
        over_time(
            ("late: compute", "[backward 3][backward 2][backward 1]"),
            ("      network", "                                    [all-reduce 3 2 1 ...]"),
            ("early: compute", "[backward 3][backward 2][backward 1][wait            ][step]"),
            ("       network", "            [all-reduce 3][all-reduce 2][all-reduce 1]"),
            says="Layer 3 is the last of the model: backward computes its gradient first.",
        ),
    ),
    "buckets": Topic(
        "Few large messages cost less than many small ones, but one message for everything cannot start before "
        "backward is over. Buckets are in between.",
        (
            "Buckets are filled in the order of `parameters()`: backward computes the gradients in the reverse order.",
            "The last bucket is not full when backward ends, and is never sent.",
            "The size is counted in elements, not in bytes: use `p.numel() * p.element_size()`.",
        ),
        held(
            "backward computes | bucket (bucket_size_mb=4)     | sent",
            "w4 (1 MB)         | 1: w4                         |",
            "w3 (2 MB)         | 1: w4 w3                      |",
            "w2 (2 MB)         | 2: w2, as bucket 1 would have 5 MB | bucket 1",
            "w1 (1 MB)         | 2: w2 w1                      |",
            "on_after_backward |                               | bucket 2, not full",
        ),
    ),
    "equals the unsharded one": Topic(
        "Each rank updates only the parameters that it owns. All ranks must get the new values after every step, or "
        "their models drift apart.",
        (
            "never trained",
            "only lr and weight decay passed on",
            "The owner of a parameter does not send its new value, or another rank sends its old one.",
        ),
        over_time(
            ("rank 0", "[step w1, its own][broadcast w1 ->][broadcast w2 <-]"),
            ("rank 1", "[step w2, its own][broadcast w1 <-][broadcast w2 ->]"),
            says="Afterwards w1 and w2 are the same on both ranks, as after the step of an unsharded optimizer.",
        ),
    ),
    "state is sharded": Topic(
        "Adam keeps two numbers for each element of a parameter. Divided among N ranks, each keeps an N-th of them: "
        "that is what the optimizer is for.",
        ("The inner optimizer, made of `optimizer_cls`, gets all parameters on every rank: nothing is saved.",),
        _OWNERS,
    ),
    "state is balanced": Topic(
        "The rank with the largest share decides how much memory all need.",
        ("Dealing by number (`index % world_size`) gives one rank all weights, where weights and biases alternate.",),
        _OWNERS,
    ),
    "closures and clearing": Topic(
        "`step(closure)` and `zero_grad()` belong to the interface of every torch optimizer; training loops and "
        "libraries call them.",
        (
            "`zero_grad` clears the gradients of the rank's own parameters only: the others add up over the steps.",
            "The closure runs once for each inner optimizer, or not at all on a rank that owns nothing.",
        ),
        over_time(
            ("rank 0", "closure() once [step w1][broadcast w1 ->][broadcast w2 <-] the loss"),
            ("rank 1", "closure() once [step w2][broadcast w1 <-][broadcast w2 ->] the loss"),
        ),
    ),
    "equals one process": Topic(
        "A wrapper and an optimizer that are right by themselves can still disturb one another.",
        (
            "The optimizer's `zero_grad` clears only owned gradients, and the wrapper averages what is left of others.",
            "The optimizer gives parameters new memory, and the wrapper still looks at the old one.",
        ),
        over_time(
            ("rank 0", "[backward][all-reduce][step w1, its own][broadcast w1, w2]"),
            ("rank 1", "[backward][all-reduce][step w2, its own][broadcast w1, w2]"),
        ),
    ),
    "equals training in one process": Topic(
        "An engine sees the whole training step, and may move work between backward and step. After each step, the "
        "parameters must still be those that one process computes.",
        (
            "Gradients are summed over the ranks and never divided, or divided in `backward` and again in `step`.",
            "`step` updates this rank's part, and the other ranks keep the old values of it.",
            "`backward` divides the loss by a number of micro-batches that `step` does not know of.",
        ),
        over_time(
            ("rank 0", "[backward][all-reduce][step w1, its own][broadcast w1, w2]"),
            ("rank 1", "[backward][all-reduce][step w2, its own][broadcast w1, w2]"),
        ),
    ),
    "optimizers": Topic(
        "An engine makes the optimizer of `optimizer_cls`: every option that the user gives must reach it.",
        ("only lr and weight decay passed on", "The engine computes the update itself, for Adam or SGD alone."),
        held(
            "the user gives              | the engine makes",
            "SGD, lr, momentum, nesterov | SGD, lr, momentum, nesterov",
            "RMSprop, lr, alpha          | RMSprop, lr, alpha",
        ),
    ),
    "overhead of communication": Topic(
        "The model tells how much time communication adds after backward, before anything is measured.",
        (
            "Only the last bucket, s/(n_b w), is left to send after backward, not all s bytes.",
            "The overhead o of one call is counted, not of all n_b calls. w is the bandwidth in bytes per second.",
        ),
        over_time(
            ("compute", "[backward 1  ][backward 2  ]"),
            ("network", "              [all-reduce 1][all-reduce 2]"),
            says="What is left after backward: the last bucket, s/(n_b w) seconds, and n_b o for the calls.",
        ),
    ),
    "best bucket size": Topic(
        "Small buckets leave little to send after backward, large ones save calls. The optimum lies between.",
        ("The optimum is asked for in bytes of a bucket, not as the number of buckets.",),
        held(
            "buckets | last bucket | calls     | together",
            "few     | much        | little    | slow",
            "many    | little      | much      | slow",
            "best    | equal       | equal     | fast: s/(n_b w) = n_b o",
        ),
    ),
    "each sample goes to one rank": Topic(
        "A sample that two ranks get counts twice. Shares of different lengths make ranks wait for ever: repeat as few "
        "samples as even them out, or with `drop_last` leave as few out.",
        (
            "Ranks shuffle with different seeds: their shares overlap, and samples are missing.",
            "The rest of the division is given to one rank alone, which then makes more steps than the others.",
        ),
        held(
            "shuffled order | 7 2 5 0 3 6 1 4 | 8 samples",
            "rank 0         | 7 5 3 1         | every second one",
            "rank 1         | 2 0 6 4         | the others",
        ),
    ),
    "a stream for each rank": Topic(
        "Ranks whose loaders draw the same numbers shuffle and augment alike: they add nothing to one another.",
        (
            "All ranks use one seed, without their rank in it.",
            "All ranks use one stream, each from another place in it.",
        ),
        held("seed 7 | numbers", "rank 0 | 0.12 0.87 0.44 ...", "rank 1 | 0.95 0.03 0.61 ..."),
    ),
    "accuracy over all ranks": Topic(
        "Each rank sees a part of the test set. The accuracy of the whole is the sum of right answers divided by the "
        "sum of samples.",
        ("The mean of the ranks' accuracies is another number if ranks have different numbers of samples.",),
        held(
            "       | right | samples | accuracy",
            "rank 0 | 9     | 10      | 0.9",
            "rank 1 | 1     | 2       | 0.5",
            "all    | 10    | 12      | 0.83, not (0.9 + 0.5) / 2 = 0.7",
        ),
    ),
    "equals one large batch": Topic(
        "Micro-batches stand for one large batch that does not fit into memory: the step must be the same.",
        (
            "The loss of each micro-batch is not divided by their number.",
            "Micro-batches of different sizes get equal weights.",
        ),
        _ACCUMULATED,
    ),
    "one exchange of gradients": Topic(
        "Each exchange costs time. Gradients add up on each rank first; only their sum must be averaged.",
        ("Backward runs in `no_sync`, but forward outside it.", "The last micro-batch runs in `no_sync`, too."),
        _ACCUMULATED,
    ),
    "gradient scaler": Topic(
        "A scaler multiplies the loss, and skips a step whose gradients are infinite. All ranks must do the same.",
        ("`scaler.update()` is called for each micro-batch.", "`optimizer.step()` is called, not `scaler.step`."),
        _ACCUMULATED,
    ),
    "statistics over all ranks": Topic(
        "Batch norm divides by the standard deviation of the batch. With a few samples per rank, each rank's own one "
        "is far from that of the whole batch.",
        (
            "Variances are averaged: that leaves out how far the ranks' means are apart.",
            "Backward treats mean and variance as constants, or uses the rank's own sums.",
        ),
        held(
            "       | count | mean | squares about the mean",
            "rank 0 | 2     | 3    | 2",
            "rank 1 | 1     | 6    | 0",
            "all    | 3     | 4    | 2 + 0 + 2 (3-4)^2 + 1 (6-4)^2 = 8",
            says="variance 8/3 = 2.67 on every rank; `running_var` takes 8/2 = 4, with N - 1",
        ),
    ),
    "a training goes on": Topic(
        "Trainings of days are interrupted. One that goes on from a checkpoint must end as if nothing had happened.",
        (ONE_FILE, "Momentum, the groups' learning rates, the epoch or the scaler are not saved."),
        over_time(
            ("before", "[step 1][step 2][save] killed"),
            ("after", "                       [load][step 3][step 4]"),
            says="Steps 3 and 4 give the numbers of a training without a break.",
        ),
    ),
    "equals the unsharded model": Topic(
        "Sharding changes where numbers lie, not what they are.",
        (
            "Gradients are summed by the reduce-scatter, and never divided by the number of ranks.",
            "Whole weights that were gathered are used after the optimizer has changed the shards.",
        ),
        over_time(
            ("rank 0", "[all-gather][forward] ... [all-gather][backward][reduce-scatter][step]"),
            ("rank 1", "[all-gather][forward] ... [all-gather][backward][reduce-scatter][step]"),
        ),
    ),
    "parameters are sharded": Topic(
        "A model that does not fit into the memory of one rank fits into that of many.",
        ("The whole parameters stay referenced: by the module, a hook, a view, or autograd.",),
        _SHARDS,
    ),
    "weights are gathered and freed": Topic(
        "Whole weights exist only while their layer computes. If all are gathered at first, nothing is saved.",
        ("Weights are gathered for the whole model before forward.", "Autograd keeps whole weights for backward."),
        over_time(
            ("layer 1", "[all-gather][forward] freed"),
            ("layer 2", "            [all-gather ][forward] freed"),
            ("layer 3", "                         [all-gather ][forward] freed"),
            says="Two weights are whole at a time here. Each check says how many it allows.",
        ),
    ),
}
