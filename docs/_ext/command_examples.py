"""Examples in the help of commands, shown as code on the site: paragraphs that click keeps as they are."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import click
from sphinx.application import Sphinx

KEPT = "| "
"""What sphinx-click puts before each line of such a paragraph."""


def show_as_code(app: Sphinx, context: click.Context, lines: list[str]) -> None:
    """Turn a paragraph of a leading line and indented commands into that line and a block of code."""
    made: list[str] = []
    for kept, group in groupby(lines, lambda line: line.startswith(KEPT)):
        part = [line.removeprefix(KEPT) for line in group]
        if kept:
            code = [line for line in part if line.startswith(" ")]
            part = [line for line in part if not line.startswith(" ")]
            part += ["", ".. code-block:: bash", "", *code, ""] if code else []
        made += part
    lines[:] = made


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension with Sphinx."""
    app.connect("sphinx-click-process-description", show_as_code)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
