"""What is said of operations that are not as a test expects them."""

from collections.abc import Callable, Sequence

from pytest_ddp.observed.entry import Entry, Moment

_SHOWN = 10  # at either end of a long list


def operations(said: str) -> str:
    """Return "operations (all_reduce inside backward)", given what was selected."""
    return f"operations ({said})" if said else "operations"


def listed(entries: Sequence[Entry], told: Callable[[Entry], str] = lambda _: "") -> str:
    """Return operations one below the other, each with what is told of it; of very many the first and the last."""
    lines = [f"\n  {entry}{told(entry)}" for entry in entries]
    left_out = len(lines) - 2 * _SHOWN
    if left_out > 0:
        lines[_SHOWN:-_SHOWN] = [f"\n  ... {left_out} operations left out ..."]
    return "".join(lines)


def launched(entry: Entry) -> str:
    """Say when an operation was launched."""
    return f": launched {when(entry.launched)}"


def waited(entry: Entry) -> str:
    """Say when an operation was first waited for."""
    return ": never waited for" if entry.waited is None else f": first waited for {when(entry.waited)}"


def when(moment: Moment) -> str:
    """Say where autograd was."""
    if moment.backward is None:
        return "outside backward"
    return f"inside backward {moment.backward}, with {moment.ready} of {moment.expected} gradients ready"
