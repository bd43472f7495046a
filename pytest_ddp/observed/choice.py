"""Which operations a test wants to look at."""

from dataclasses import dataclass

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.entry import Entry
from pytest_ddp.observed.operations import NAMES


@dataclass(frozen=True)
class Choice:
    """What an operation must be to be chosen; None leaves it open.

    Attributes:
        ops: any of these operations; all for ().
        group: the name of its process group.
        dtype: of its tensors, such as "float32".
        inside_backward: whether it was launched while a backward pass ran.
    """

    ops: tuple[str, ...] = ()
    group: str | None = None
    dtype: str | None = None
    inside_backward: bool | None = None

    def __post_init__(self) -> None:
        unknown = [op for op in self.ops if op not in NAMES]
        if unknown:
            raise UsageError(f"no operation is called {unknown[0]!r}; there are {', '.join(sorted(NAMES))}")

    def takes(self, entry: Entry) -> bool:
        """Whether an operation is chosen."""
        return (
            (not self.ops or entry.op in self.ops)
            and self.group in {None, entry.group}
            and self.dtype in {None, entry.dtype}
            and self.inside_backward in {None, entry.launched.backward is not None}
        )

    def __str__(self) -> str:
        words = [" or ".join(self.ops)] if self.ops else []
        words += [f"in group {self.group!r}"] if self.group is not None else []
        words += [f"of {self.dtype}"] if self.dtype is not None else []
        if self.inside_backward is not None:
            words.append(f"launched {'inside' if self.inside_backward else 'outside'} backward")
        return " ".join(words)
