"""Sphinx configuration: ``make docs``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import reference_pages

reference_pages.write()

project = "fieldfill"
author = "the fieldfill developers"
extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
html_theme = "pydata_sphinx_theme"
html_theme_options = {"header_links_before_dropdown": 6, "show_prev_next": False}
html_static_path = ["static"]
html_css_files = ["wide.css"]
# Commands are not Python.
highlight_language = "text"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
# A name in single backticks in a docstring is a link to what it names.
default_role = "py:obj"
numpydoc_show_class_members = False
autodoc_typehints = "signature"
# One parameter per line in signatures longer than this.
maximum_signature_line_length = 100
