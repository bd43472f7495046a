"""Says to the controller's Hypothesis what the test said on ranks: notes, events and targets."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest

from hypothesis import event, note, target

from pytest_ddp.example import Told


def pass_on(told: Mapping[int, Told]) -> None:
    """Repeat notes with their rank unless all ranks said the same, events once, of each target the best."""
    for text in notes_of(told):
        note(text)
    for value, payload in {name: value for account in told.values() for name, value in account.events.items()}.items():
        event(value, payload)
    best: dict[str, float] = {}
    for account in told.values():
        for label, observed in account.targets.items():
            best[label] = max(observed, best.get(label, observed))
    for label, observed in best.items():
        target(observed, label=label)


def notes_of(told: Mapping[int, Told]) -> Iterator[str]:
    """Yield what was noted, in order; with its rank what not all ranks said."""
    for together in zip_longest(*(account.notes for account in told.values())):
        if len(set(together)) == 1:
            yield together[0]
        else:
            pairs = zip(told, together, strict=True)
            yield from (f"rank {rank}: {text}" for rank, text in pairs if text is not None)
