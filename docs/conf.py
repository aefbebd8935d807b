"""Configuration of the documentation site; `make docs` builds it."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

# Sphinx keeps most of what it makes: collections of garbage would take long and find little.
gc.disable()

ROOT = Path(__file__).parents[1]
# A checkout documents its own code, whatever is installed.
sys.path[:0] = [str(ROOT), str(ROOT / "plugins"), str(ROOT / "docs" / "_ext")]

import dask_elastic  # noqa: E402

project = "dask_elastic"
author = "The dask_elastic developers"
project_copyright = author
version = release = dask_elastic.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.githubpages",
    "sphinx.ext.mathjax",
    "sphinx_click",
    "sphinxcontrib.mermaid",
    "command_examples",
    "internal_names",
    "navigation",
    "repository_links",
]
root_doc = "index"
exclude_patterns = ["_build"]
templates_path = ["_templates"]
nitpicky = True
# Options such as --watch keep their dashes.
smartquotes = False

# Markdown pages are written for GitHub's renderer too: its anchors of headings, its Mermaid blocks.
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

# Types are in the docstrings, in words; signatures stay readable without them.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False
# A name in single backticks links to what the reference documents; any other name is code. It must exist if it begins
# with dask_elastic.
default_role = "py:obj"
nitpick_ignore_regex = [("py:obj", r"(?!dask_elastic\.).*")]

html_theme = "dask_sphinx_theme"
html_title = "dask_elastic"
html_static_path = ["_static"]
html_css_files = ["site.css"]
# The sidebar of a page lists only the pages of its own section: with all records of decisions, each page would be large
# and take long to write.
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False, "collapse_navbar": True}
html_copy_source = False
