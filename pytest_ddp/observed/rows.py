"""Puts what overlaps in time into rows of its own."""

from dataclasses import dataclass, field


@dataclass
class Rows:
    """Rows of spans, numbered from `first` on; the spans of a row follow one another.

    Attributes:
        made: the rows that there are, as (whose, number).
    """

    first: int = 0
    made: list[tuple[str, int]] = field(default_factory=list)
    _ends: dict[int, int] = field(default_factory=dict)

    def place(self, whose: str, start: int, end: int) -> int:
        """Return the number of a row for a span of somebody; spans must come in the order of their starts."""
        for owner, number in self.made:
            if owner == whose and self._ends[number] <= start:
                self._ends[number] = end
                return number
        number = self.first + len(self.made)
        self.made.append((whose, number))
        self._ends[number] = end
        return number
