"""Pictures in one style. matplotlib is imported only when one is drawn.

A picture is an object of matplotlib without a window. It is saved as SVG, or as PNG if the name ends so. Files are the
same for the same numbers: an SVG holds no date and no random ids.
"""

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

MISSING = "No pictures: they need matplotlib. Install it with: pip install 'pytest-ddp[bench]'"

COLOURS = ("#1f5fa8", "#d1662b", "#2f8f5b", "#8b5fb0", "#c23b4b", "#6b6b6b", "#b79a1e", "#3aa6b9")
"""One for each series, in order: they differ in brightness too, for print and for colour-blind readers."""

_OTHER = "#6b6b6b"
_INCHES = (8.0, 4.8)  # 800 by 480 pixels at 100 dots per inch
_STYLE: Any = {
    "figure.dpi": 100,
    "savefig.dpi": 100,
    "font.size": 11,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that text has the same width everywhere
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.hashsalt": "reference.bench",
    "svg.fonttype": "path",
}


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def figure(title: str, *, x: str, y: str, inches: tuple[float, float] = _INCHES) -> "tuple[Figure, Axes]":
    """An empty picture with one pair of axes.

    Args:
        title: what the picture shows.
        x: what the horizontal axis shows, with its unit.
        y: what the vertical axis shows, with its unit.
        inches: width and height, of 100 pixels each.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    made, [axes] = panels([(title, x, y)], inches=inches)
    return made, axes


def panels(
    labels: Sequence[tuple[str, str, str]], *, inches: tuple[float, float] = _INCHES
) -> "tuple[Figure, list[Axes]]":
    """An empty picture with several pairs of axes, one below the other.

    Args:
        labels: title, label of the horizontal axis and label of the vertical axis, for each pair.
        inches: width and height of the whole picture, of 100 pixels each.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    if not can_draw():
        raise RuntimeError(MISSING)
    import matplotlib as mpl  # noqa: PLC0415  # slow, and only the extra installs it
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(_STYLE):
        made = Figure(figsize=inches, layout="constrained")
        FigureCanvasAgg(made)
        axes = [made.add_subplot(len(labels), 1, number + 1) for number in range(len(labels))]
        for one, (title, x, y) in zip(axes, labels, strict=True):
            one.set(title=title, xlabel=x, ylabel=y)
    return made, axes


def line(
    axes: "Axes",
    xs: Sequence[float],
    ys: Iterable[tuple[float, float, float]],
    label: str,
    colour: str,
    *,
    style: str = "o-",
) -> None:
    """Draw medians as a line, and a band from the first to the third quartile; `ys` are (first, median, third)."""
    first, median, third = zip(*ys, strict=True)
    axes.plot(xs, median, style, label=label, color=colour)
    axes.fill_between(xs, first, third, color=colour, alpha=0.18, linewidth=0)


def stack(
    axes: "Axes",
    place: float,
    parts: Mapping[str, float],
    colours: Mapping[str, str],
    *,
    is_labelled: bool = False,
    is_formula: bool = False,
) -> None:
    """Draw a bar of parts above one another.

    Args:
        axes: to draw on.
        place: the middle of the bar on the horizontal axis.
        parts: heights by name, from below.
        colours: by the names of parts; others are grey.
        is_labelled: whether the parts are named in the legend.
        is_formula: whether a formula gave the heights: such a bar is hatched and paler.
    """
    bottom = 0.0
    for name, height in parts.items():
        axes.bar(
            place,
            height,
            width=0.36,
            bottom=bottom,
            label=name if is_labelled else None,
            color=colours.get(name, _OTHER),
            alpha=0.55 if is_formula else 1.0,
            edgecolor="white",
            hatch="//" if is_formula else "",
        )
        bottom += height


def plain_log(axis: "Axis") -> None:
    """Make an axis logarithmic, with plain numbers such as 0.01 at its ticks."""
    from matplotlib.ticker import FuncFormatter, NullFormatter  # noqa: PLC0415

    (axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale)("log")
    axis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def tick_at(axes: "Axes", xs: Sequence[float]) -> None:
    """Make the horizontal axis logarithmic, with a tick at each of a few numbers and none elsewhere."""
    from matplotlib.ticker import NullLocator  # noqa: PLC0415

    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(xs, [f"{x:.3g}" for x in xs])


def log_range(low: float, high: float, points: int = 60) -> list[float]:
    """Numbers from `low` to `high`, each by the same factor larger, to draw a curve on a logarithmic axis."""
    return [low * (high / low) ** (number / (points - 1)) for number in range(points)]


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, in order."""
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}


def save(picture: "Figure", path: Path) -> Path:
    """Write a picture as SVG or PNG, as the path's suffix says; make its folder. Returns the path."""
    import matplotlib as mpl  # noqa: PLC0415

    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        picture.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path
