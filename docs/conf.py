"""Sphinx configuration: Markdown pages, and formulas as MathML, which needs no script."""

from latex2mathml.converter import convert
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
    writer.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app):
    """Register the writer of formulas."""
    app.add_html_math_renderer("mathml", (inline_formula, None), (displayed_formula, None))
