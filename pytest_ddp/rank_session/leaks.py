"""What a test leaves behind on its rank: it is found, restored if possible, and reported.

A `Snapshot` is taken before a test's own fixtures are set up, and restored after they are torn down. `KINDS` lists what
it holds: settings (`leak_settings`), and threads, processes, groups and memory (`leak_resources`). To add a setting,
add a line to `SETTINGS`; to add another kind, write a function that reads the state and one that restores it, and add a
line to `RESOURCES`. Then add a row to docs/clean-state.md, and a test to `tests/plugin/rank_session/test_leaks.py`.
"""

from dataclasses import dataclass
from typing import Any

from pytest_ddp.rank_session.leak_kind import Forgiven, Leak, forgiven_by
from pytest_ddp.rank_session.leak_resources import RESOURCES
from pytest_ddp.rank_session.leak_settings import SETTINGS

_NOTHING = forgiven_by(())
KINDS = (*SETTINGS, *RESOURCES)


@dataclass(frozen=True)
class Snapshot:
    """The state of this process, one value for each of `KINDS`."""

    states: tuple[Any, ...]

    @classmethod
    def take(cls) -> "Snapshot":
        """Read the state."""
        return cls(tuple(kind.read() for kind in KINDS))

    def restore(self, forgiven: Forgiven = _NOTHING) -> list[Leak]:
        """Restore this state, except for what is forgiven; return everything that was different."""
        pairs = zip(KINDS, self.states, strict=True)
        return [leak for kind, state in pairs for leak in kind.restore(state, forgiven)]


def in_words(leaks: list[Leak]) -> str:
    """Say what was left behind, and what becomes of it."""
    lasting = [leak for leak in leaks if leak.lasting]
    text = "; ".join(leak.what for leak in leaks)
    if lasting:
        names = ", ".join(dict.fromkeys(leak.name for leak in lasting))
        return f"{text}; its ranks are replaced (to forgive it: ddp_leaks_ignore = {names})"
    return f"{text}; restored" if any(leak.restored for leak in leaks) else text
