"""The kinds of state that a test must leave as it found them, and the leaks if it does not."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

Forgiven: TypeAlias = Callable[[str], bool]


@dataclass(frozen=True)
class Leak:
    """Something that a test left behind.

    Attributes:
        what: the leak in words.
        name: KIND or KIND:NAME, which `ddp_leaks_ignore` can forgive.
        lasting: whether it could not be restored, so that the rank must not run another test.
        restored: whether the state is now as it was before.
    """

    what: str
    name: str
    lasting: bool = False
    restored: bool = True


@dataclass(frozen=True)
class LeakKind:
    """A kind of state.

    Attributes:
        read: returns the state.
        restore: called with an earlier state and a function that says whether a leak of some name is forgiven; restores
            what is not forgiven, and yields what was different.
    """

    read: Callable[[], Any]
    restore: Callable[[Any, Forgiven], Iterable[Leak]]


def forgiven_by(patterns: Iterable[str]) -> Forgiven:
    """Return a function that says whether one of these patterns (as in a shell) matches the name of a leak."""
    patterns = tuple(patterns)
    return lambda name: any(fnmatchcase(name, pattern) for pattern in patterns)


def setting(name: str, read: Callable[[], Any], write: Callable[[Any], Any]) -> LeakKind:
    """Return the kind for a value that two functions read and write."""

    def restore(before: Any, forgiven: Forgiven) -> Iterator[Leak]:
        now = read()
        if now != before and not forgiven(name):
            yield Leak(f"{name} changed from {before} to {now}", name, lasting=not _succeeds(write, before))

    return LeakKind(read, restore)


def _succeeds(write: Callable[[Any], Any], value: Any) -> bool:
    try:
        write(value)
    except (OSError, TypeError, RuntimeError):  # no such working directory, now or before; a flag that torch has frozen
        return False
    return True


def count(number: int, one: str, many: str = "") -> str:
    """Return a number of things in words."""
    return f"1 {one}" if number == 1 else f"{number} {many or one + 's'}"
