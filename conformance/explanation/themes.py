"""What checks are about, by their theme: of checks whose aspect has no entry of its own, and of extended ones."""

from collections.abc import Mapping

from conformance.checks.check import Theme
from conformance.checks.words import WAIT
from conformance.explanation.pictures import held, over_time
from conformance.explanation.topic import Topic

_WAITED = over_time(
    ("wrong", "[all-reduce, launched      ...............]"),
    ("", "      [step: reads .grad before it is there]"),
    ("right", "[all-reduce, launched      ...............][step]"),
    ("", "            [backward goes on] [wait      ]"),
)
OF_THEMES: Mapping[Theme, Topic] = {
    "numbers": Topic(
        "What ranks compute together must be what one process computes on all of their data.",
        ("A rank uses what it has itself, and nothing of the other ranks.",),
        held(
            "            | data          | result",
            "rank 0      | the first half | the same as in one process",
            "rank 1      | the other half | the same as in one process",
            "one process | all            | what is right",
        ),
    ),
    "kinds of parameters and layers": Topic(
        "Real models have more than plain matrices: frozen, shared, scalar and transposed parameters, convolutions.",
        (
            "in memory order",
            "`.contiguous()` and `torch.cat` make copies: write the result back into the tensor that the model has.",
            "Frozen parameters have no gradient, and shared ones appear once in `parameters()`.",
        ),
        held(
            "parameter          | what is special",
            "frozen             | no gradient: nothing to send, equal at the start",
            "tied               | two layers, one tensor, one gradient",
            "scalar             | no dimensions, one element",
            "transposed         | not contiguous: its memory has another order than its elements",
        ),
    ),
    "precision": Topic(
        "Models train in float32, bfloat16, or both. A cast on the way loses digits that nobody sees in a toy test.",
        ("rounded to float32", "A flat tensor has one dtype: group parameters by dtype."),
        held(
            "dtype    | digits | 1/3 is stored as",
            "float64  | 16     | 0.3333333333333333",
            "float32  | 7      | 0.3333333",
            "bfloat16 | 2 to 3 | 0.334",
        ),
    ),
    "use of the model": Topic(
        "Training loops clip gradients, evaluate between steps, pass keyword arguments and load weights. None of this "
        "may go wrong because of your code.",
        (
            "`forward` drops keyword arguments: take `*args, **kwargs`, and pass both on.",
            "What forward prepares for backward is left over where no backward follows, as in evaluation.",
            "gradients of before clipping",
            "loaded weights not used",
            "Something is kept from one call to the next, in a flag, a list or a copy, and is out of date then.",
        ),
        over_time(
            ("loop", "forward [backward][all-reduce] clip [step] evaluate, load ... again"),
            says="Between any two of these, a training loop may do what it does with a plain module.",
        ),
    ),
    "parameters that take part": Topic(
        "Not every parameter has a gradient in every step: branches, experts, parameters that are frozen for a while.",
        (
            "A bucket waits for a gradient that never comes.",
            "Ranks launch different numbers of collectives, and wait for one another for ever.",
            "A gradient of zeros stands where there is none: weight decay and momentum then move the parameter.",
        ),
        held(
            "parameter | rank 0   | rank 1   | every rank gets",
            "w1        | gradient | gradient | the average",
            "w2        | gradient | unused   | the average, with zero for rank 1",
            "w3        | unused   | unused   | None: the optimizer leaves it alone",
        ),
    ),
    "accumulation": Topic(
        "Several backward passes before one step make a larger batch: the step must use the sum of their gradients.",
        (
            "the last backward pass alone",
            "the last backward pass never synchronised",
            "A count of finished gradients is not set back to zero before the next backward pass.",
        ),
        over_time(
            ("plain", "[backward 1][all-reduce] avg 1 [backward 2][all-reduce] avg 1 + avg 2"),
            ("no_sync", "[backward 1] own 1             [backward 2][all-reduce] avg 1 + avg 2"),
            says="Outside the brackets: what `.grad` holds. `no_sync` saves collectives, and gives the same sum.",
        ),
    ),
    "options and groups": Topic(
        "Schedulers and users write to `optimizer.param_groups`: the learning rate of the next step is what stands "
        "there. Groups have options of their own, and may be added later.",
        (
            "change of an option ignored",
            "first group's options everywhere",
            "added group never trained",
            "Options are read when the wrapper or the optimizer is made, and never again.",
        ),
        held(
            "param_groups (the user's) | inner optimizer of rank 0 | of rank 1",
            "0: w1 w2, lr 0.1          | w1, lr 0.1                | w2, lr 0.1",
            "1: w3 w4, lr 0.01         | w4, lr 0.01               | w3, lr 0.01",
            says="Before each step, every option of a group goes to the inner groups of all ranks.",
        ),
    ),
    "order of samples": Topic(
        "All ranks must shuffle alike, so that their shares are disjoint, and in each epoch anew.",
        (
            "The seed is drawn by each rank for itself, or is taken from the clock.",
            "The epoch does not enter the seed: every epoch has the same order.",
        ),
        held(
            "       | order (seed 7)  | rank 0  | rank 1",
            "epoch 0| 7 2 5 0 3 6 1 4 | 7 5 3 1 | 2 0 6 4",
            "epoch 1| 1 6 0 4 2 7 5 3 | 1 0 2 5 | 6 4 7 3",
        ),
    ),
    "conversion": Topic(
        "A conversion replaces layers in a model that is there already: its weights, buffers, options, modes and names "
        "must stay.",
        (
            "Layers inside containers are not found.",
            "`eps`, `momentum`, `affine` or the mode are those of a new layer.",
        ),
        held(
            "before                   | after",
            "0: Linear                | the same",
            "1: BatchNorm, weight w   | SyncBatchNorm, the same w, running statistics",
            "2: Sequential(BatchNorm) | Sequential(SyncBatchNorm)",
        ),
    ),
    "saving and loading": Topic(
        "What was saved must come back: everything, to the last bit, and nothing else may change by it.",
        (
            "saved state lost",
            "saved options lost",
            "What is saved is no copy: later steps change it, or loading changes what was given.",
            "Each rank saves or loads its own part alone, and another rank's part is lost.",
        ),
        over_time(
            ("before", "[step 1][step 2][save]"),
            ("after", "                       [load][step 3][step 4]"),
            says="Steps 3 and 4 are those of a training that was never saved.",
        ),
    ),
    "waiting": Topic(
        "A collective with `async_op=True` returns before its result is there. Code that does not wait for it reads "
        "old numbers: now and then, and more often on a slow network.",
        (WAIT, "The result is copied, or written to `.grad`, before `wait()` is called."),
        _WAITED,
    ),
    "communication": Topic(
        "Communication is what makes data-parallel training slow. What is sent, how often and when, decides.",
        (
            "Something is sent again in every step that changes only once, or a gradient is sent twice.",
            "A state from an earlier pass decides when to send in this one.",
        ),
        held(
            "in each step        | naive      | flat | buckets",
            "collectives         | one each   | one  | a few",
            "bytes               | all, once  | all, once | all, once",
            "launched            | after backward | after backward | during backward",
        ),
    ),
    "memory and state": Topic(
        "Sharding exists to save memory. What a rank keeps is measured, wherever it lies.",
        ("Another reference, a view or a copy keeps alive what should be freed.",),
        held(
            "a rank keeps      | plain | sharded among 4 ranks",
            "parameters        | all   | all (optimizer), or a quarter (fsdp)",
            "gradients         | all   | all (optimizer), or a quarter (fsdp)",
            "optimizer's state | all   | a quarter",
        ),
    ),
    "robustness": Topic(
        "Trainings are long: batches overflow, passes raise exceptions, ranks run on several machines.",
        (
            "Lists of handles or hooks grow in every step: clear them.",
            "What an interrupted pass left behind is used in the next one.",
        ),
        over_time(
            ("rank 0", "[backward][all-reduce] inf, skipped [backward][all-reduce][step]"),
            ("rank 1", "[backward][all-reduce] inf, skipped [backward][all-reduce][step]"),
            says="Whatever happens on one rank, all ranks go on alike.",
        ),
    ),
}
