"""Words that messages of several checks share."""

from collections.abc import Iterable

from conformance.scenarios.scenario import Scenario

RACE = "This is a race"
WAIT = (
    "Every collective with `async_op=True` returns a handle: call its `wait()` before its result is used. Without "
    "that, numbers are wrong now and then, on a slow network more often."
)
ONE_FILE = (
    "A checkpoint is one file, at the path that is given. Rank 0 writes all that is saved into it, every rank loads "
    "it. A file of each rank does not fit another number of ranks, and is lost where the checkpoint is copied."
)
TENSOR_HOOK = (
    "A hook of `register_hook` gets the gradient before backward stores it in `.grad`, and may store a copy. Use "
    "`register_post_accumulate_grad_hook`, which runs when `.grad` is there, and reduce `parameter.grad`."
)
TWO_MACHINES = (
    "Ranks seem to be on two machines here: `LOCAL_RANK` is a rank's place on its own machine, and `LOCAL_WORLD_SIZE` "
    "counts the ranks there. Take `dist.get_rank()` and `dist.get_world_size()`."
)


def step_words(scenario: Scenario, step: int) -> str:
    """Return "step 1 of 3" for step 0."""
    return f"step {step + 1} of {scenario.steps}"


def never_awaited(operations: list[str]) -> str:
    """Return a sentence about operations that nobody has waited for; empty if there are none."""
    more = f" and {len(operations) - 1} more" if len(operations) > 1 else ""
    return f" Nobody waited at all for {operations[0]}{more}." if operations else ""


def listed(names: Iterable[str]) -> str:
    """Return names in backquotes, at most four of them."""
    names = list(names)
    shown = ", ".join(f"`{name}`" for name in names[:4])
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")  # noqa: PLR2004  the same four
