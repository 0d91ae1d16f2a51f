"""Sphinx configuration: MyST pages, furo theme, API pages from docstrings."""

import sys
from importlib.metadata import version as _version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # mathml.py

project = "gradient-alignment"
author = "the gradient-alignment authors"
release = _version("gradient-alignment")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "mathml",
]
myst_enable_extensions = ["dollarmath", "amsmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
suppress_warnings = ["ref.python"]  # words of a shape such as "(n, d)" are not references
exclude_patterns = ["_build"]

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_title = "gradient-alignment"
