"""Panels as SVG inside a page: no fixed colours, no fixed size, a text alternative."""

from __future__ import annotations

import io
import re

from markupsafe import Markup, escape
from matplotlib.figure import Figure

from unsoftmax.figures.panel import THEME, Panel, themed

# Of colour bars; heat maps have a pixel per entry.
DPI = 96


def svg(panel: Panel, name: str) -> Markup:
    """Draw a panel as an element of a page.

    Parameters
    ----------
    panel : Panel
        What to draw.
    name : str
        Begins every identifier in it: unique on the page, a letter and letters or digits.
    """
    with themed(**{"svg.hashsalt": name, "figure.facecolor": "none"}):
        figure = Figure(figsize=(panel.width, panel.height), layout="constrained")
        panel.draw(figure.subplots())
        file = io.StringIO()
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", dpi=DPI, metadata=no_metadata)
    return _inlined(file.getvalue(), panel, name)


def _inlined(text: str, panel: Panel, name: str) -> Markup:
    """Turn matplotlib's file into an element: unique identifiers, colours that the page sets."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{name}-", text)
    for part, colour in THEME.names().items():
        text = text.replace(colour, f"var(--{part})")
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    head = (
        f'<svg class="figure" role="img" aria-labelledby="{name}-title {name}-desc" {box[0]} '
        f'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<title id="{name}-title">{escape(panel.title)}</title>'
        f'<desc id="{name}-desc">{escape(panel.described)}</desc>'
    )
    return Markup(head + re.sub(r"^<svg[^>]*>", "", text))
