"""Sphinx configuration: Markdown pages, formulas as MathML, and figures out of evidence.csv."""

import csv
import re
from pathlib import Path

from latex2mathml.converter import convert
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nodes

import unsoftmax

project = "unsoftmax"
copyright = "the authors of unsoftmax, Apache-2.0"
version = release = unsoftmax.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"unsoftmax {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_math_renderer = "mathml"
html_search_scorer = str(Path(__file__).with_name("search_scorer.js"))
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_ivar = True
exclude_patterns = ["_build"]


def inline_formula(writer, node):
    """Write $…$ as MathML."""
    writer.body.append(convert(node.astext(), display="inline"))
    raise nodes.SkipNode


def displayed_formula(writer, node):
    """Write $$…$$ as MathML in a box that scrolls where the window is narrow."""
    writer.body.append(
        f'<div class="formula" tabindex="0">{convert(node.astext(), display="block")}</div>'
    )
    raise nodes.SkipNode


class Measured(SphinxDirective):
    """``{measured}`` with a claim as its body: what evidence.csv has beside it, copied nowhere.

    The claim is the body because pages that don't know the directive show that, and no more.
    """

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True

    def run(self):
        """Return a paragraph, or an error where there is no such row."""
        if self.arguments or len(self.content) != 1:
            raise self.error(
                "Put the claim on a line of its own below ```{measured}, and nothing behind that: "
                "GitHub shows only the block's body."
            )
        evidence = Path(self.env.srcdir) / "evidence.csv"
        self.env.note_dependency(str(evidence))
        with evidence.open(encoding="utf-8", newline="") as file:
            rows = {re.sub(" +", " ", row["claim"]): row for row in csv.DictReader(file)}
        [claim] = self.content
        if claim not in rows:
            raise self.error(f"No row of evidence.csv claims {claim!r}.")
        row = rows[claim]
        figures = ", ".join(filter(None, (row["count"], row["measured"])))
        text = f"Measured ([Evidence](/evidence.md)): *{claim}*: {figures}."
        return self.parse_text_to_nodes(text)


def separate_attributes(app, what, name, obj, options, lines):
    """Give every name of ``a, b : int`` a field: Sphinx would take the first for a type."""
    fields = re.split(r"\n(?=\S|$)", "\n".join(lines))
    lines.clear()
    for field in fields:
        named = re.match(r":(ivar|vartype) (\w+(?:, \w+)+):", field)
        for each in named[2].split(", ") if named else [""]:
            lines += (field.replace(named[2], each, 1) if named else field).split("\n")


def setup(app):
    """Register the writer of formulas, the directive, and what follows napoleon (500)."""
    app.connect("autodoc-process-docstring", separate_attributes, priority=600)
    app.add_html_math_renderer("mathml", (inline_formula, None), (displayed_formula, None))
    app.add_directive("measured", Measured)
