"""Puts spans that overlap in time beside one another."""

from dataclasses import dataclass, field


@dataclass
class Lanes:
    """Lanes, numbered from `first` on; the spans of a lane follow one another.

    Attributes:
        made: the lanes that there are, as (whose, number).
    """

    first: int = 0
    made: list[tuple[str, int]] = field(default_factory=list)
    _ends: dict[int, int] = field(default_factory=dict)

    def place(self, whose: str, start: int, end: int) -> int:
        """Return the number of a lane for a span of somebody; spans must come in the order of their starts."""
        for owner, number in self.made:
            if owner == whose and self._ends[number] <= start:
                self._ends[number] = end
                return number
        number = self.first + len(self.made)
        self.made.append((whose, number))
        self._ends[number] = end
        return number
