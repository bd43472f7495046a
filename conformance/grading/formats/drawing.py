"""Draws what each rank did in a step, as SVG: one row for each rank, time from the left to the right."""

from collections.abc import Sequence

from markupsafe import Markup, escape

_ROW, _BOX, _HEIGHT, _LABEL, _CHARACTER = 34, 6, 24, 60, 8


def timeline_svg(timeline: Sequence[Sequence[str]]) -> Markup:
    """Return the picture; the labels are text, whatever they say. Collectives stand out from what happened around."""
    rows = [_row(rank, events) for rank, events in enumerate(timeline)]
    width = max((end for _, end in rows), default=0)
    height = _ROW * len(rows)
    body = Markup("").join(drawn for drawn, _ in rows)
    return Markup('<svg role="img" viewBox="0 0 {0} {1}" width="{0}" height="{1}">{2}</svg>').format(
        width, height, body
    )


def _row(rank: int, events: Sequence[str]) -> tuple[Markup, int]:
    """Return the boxes of a rank, and where they end."""
    top, left = rank * _ROW, _LABEL
    drawn = [Markup('<text x="0" y="{}">rank {}</text>').format(top + 16, rank)]
    for event in events:
        width = len(event) * _CHARACTER + 2 * _BOX
        kind = "sent" if event.endswith(" B") else "around"
        drawn.append(
            Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="4"/>').format(
                kind, left, top, width, _HEIGHT
            )
            + Markup('<text x="{}" y="{}">{}</text>').format(left + _BOX, top + 16, escape(event))
        )
        left += width + _BOX
    return Markup("").join(drawn), left
