"""Sphinx configuration: ``make docs``."""

project = "fieldfill"
author = "the fieldfill developers"
extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
html_theme = "pydata_sphinx_theme"
html_sidebars = {"**": []}  # all pages are in the head
html_static_path = ["static"]
html_css_files = ["wide.css"]
highlight_language = "text"  # commands are no Python
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "amsmath"]
numpydoc_show_class_members = False
autodoc_typehints = "description"
