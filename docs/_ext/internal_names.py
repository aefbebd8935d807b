"""Dotted names in single backticks that the reference does not list: code if they exist, a warning if they do not."""

from __future__ import annotations

import importlib
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


def exists(name: str) -> bool:
    """Return whether a dotted name is a module, or an attribute of one or of its classes."""
    value: Any = importlib.import_module(name.partition(".")[0])
    parts = name.split(".")
    for count, part in enumerate(parts[1:], start=2):
        if not hasattr(value, part):
            try:
                importlib.import_module(".".join(parts[:count]))
            except ImportError:
                return False
        value = getattr(value, part)
    return True


def show_as_code(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.TextElement | None:
    """Resolve a reference to a name of the package to the name itself."""
    target = str(node.get("reftarget", ""))
    if node.get("reftype") == "obj" and target.startswith("dask_elastic.") and exists(target):
        return content
    return None


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension with Sphinx."""
    app.connect("missing-reference", show_as_code)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
