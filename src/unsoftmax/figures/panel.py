"""One drawing with its text alternative, and several of them in one figure."""

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a figure on white, each another one: a page may give each a meaning of its own.

    They are told apart by people who see no difference between red and green, and on white each
    has a contrast of 4.5 or more, the grid apart.
    """

    ink: str = "#1b1e25"
    muted: str = "#565d6d"
    grid: str = "#ccd1da"
    paper: str = "#ffffff"
    series: tuple[str, ...] = ("#1d5fad", "#b04a12", "#1f7a55", "#7b4ba6", "#8a6d00", "#b0306a")

    def names(self) -> dict[str, str]:
        """Return the colours by name, without the paper."""
        numbered = {f"series-{n}": colour for n, colour in enumerate(self.series)}
        return {"ink": self.ink, "muted": self.muted, "grid": self.grid, **numbered}

    def settings(self) -> dict[Any, Any]:
        """Return matplotlib's settings; names may have dollar signs, so nothing is mathematics."""
        return {
            "text.color": self.ink,
            "axes.edgecolor": self.muted,
            "axes.labelcolor": self.ink,
            "axes.titlesize": 11,
            "axes.grid": False,
            "axes.facecolor": "none",
            "figure.facecolor": self.paper,
            "grid.color": self.grid,
            "xtick.color": self.muted,
            "ytick.color": self.muted,
            "xtick.labelcolor": self.ink,
            "ytick.labelcolor": self.ink,
            "legend.frameon": False,
            "legend.fontsize": 9,
            "text.parse_math": False,
            "svg.fonttype": "none",
        }


THEME = Theme()
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that no page may hold."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing.

    Attributes
    ----------
    title : str
        What it shows.
    described : str
        Its text alternative: what one would read off it, with numbers.
    draw : callable
        Draws it on axes.
    note : str
        What a reader must know to read it right.
    width, height : float
        In inches.
    """

    title: str
    described: str
    draw: Callable[[Any], None]
    note: str = ""
    width: float = 4.6
    height: float = 3.3


@contextmanager
def themed(**more: Any) -> Iterator[None]:
    """Draw with our settings, whatever the user's are."""
    with mpl.rc_context(), warnings.catch_warnings(), np.errstate(all="ignore"):
        # of letters that its font lacks and of numbers at float64's ends: a reader sees both
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        mpl.rcdefaults()
        settings: dict[Any, Any] = {**THEME.settings(), **more}
        mpl.rcParams.update(settings)
        yield


def arranged(panels: Sequence[Panel], title: str, columns: int = 3) -> Figure:
    """Draw panels into one figure, row by row."""
    columns = max(1, min(columns, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    with themed():
        figure = Figure(figsize=(4.6 * columns, 3.3 * rows + 0.4), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        for axis, panel in zip(axes, panels, strict=False):
            axis.set_title(panel.title)
            panel.draw(axis)
        figure.suptitle(title, fontsize=12)
    return figure


def lay_out(figure: Figure) -> None:
    """Place what is in a figure for good: one that keeps its layout is drawn twice to be saved."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)


def write_png(figure: Figure, path: Any, dpi: int = 90) -> None:
    """Write a figure as a picture file."""
    with themed():
        lay_out(figure)
        figure.savefig(path, dpi=dpi, format="png", metadata={"Software": "unsoftmax"})


def scientific(number: float) -> str:
    """Write a number in a few characters: 0.25, 3e-12.

    Examples
    --------
    >>> scientific(0.25), scientific(3.04e-9), scientific(0.0)
    ('0.25', '3.0e-9', '0')
    """
    if not math.isfinite(number):
        return "∞" if number > 0 else "-∞" if number < 0 else "none"
    if not number or 1e-3 <= abs(number) < 1e4:
        return f"{number:.3g}"
    digits, _, exponent = f"{number:.1e}".partition("e")
    return f"{digits}e{int(exponent)}"


def label(text: str, most: int = 44) -> str:
    """Make a name fit a figure: one line, no control characters, no longer than others.

    Examples
    --------
    >>> label("W of  head 3"), label("x" * 60, most=5)
    ('W of head 3', 'xxxx…')
    """
    line = UNPRINTABLE.sub("�", " ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"


def in_tens(axis: Any) -> None:
    """Label a logarithmic axis with few plain numbers."""
    axis.set_major_locator(LogLocator(numticks=6))
    axis.set_major_formatter(lambda x, _: f"1e{np.log10(x):.0f}")
    axis.set_minor_locator(NullLocator())


def in_whole_numbers(axis: Any) -> None:
    """Label an axis of counts."""
    axis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axis.set_major_formatter(lambda x, _: f"{x:,.0f}")
