"""Sphinx configuration."""

import unsoftmax

project = "unsoftmax"
version = release = unsoftmax.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_ivar = True
exclude_patterns = ["_build"]
