"""The navigation of the site, added to the pages where it starts: GitHub would show toctree directives as code."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

PARTS = {
    "To use it": [
        "Overview <readme>",
        "tutorial",
        "state",
        "windows",
        "fusion",
        "joins",
        "spark",
        "preparation",
        "coming-from",
        "structured-streaming",
        "control",
        "sizing",
        "deployment",
        "dashboard",
        "cli",
        "planning",
        "configuration",
        "security",
        "limits",
        "checkpoints",
        "fault-tolerance",
        "examples",
    ],
    "Reference": ["api", "changelog"],
    "To understand or change it": [
        "contributing",
        "architecture",
        "decisions/README",
        "benchmarks",
        "figures",
        "figures-state-migration",
        "figures-enorm",
    ],
}


def toctree(entries: list[str], *options: str) -> str:
    """Return a toctree in MyST's syntax."""
    return "\n\n" + "\n".join(["```{toctree}", ":hidden:", *options, "", *entries, "```"]) + "\n"


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the toctrees to the start page, and those of the records to their list."""
    if docname == "index":
        source[0] += "".join(toctree(pages, f":caption: {caption}") for caption, pages in PARTS.items())
    elif docname == "decisions/README":
        source[0] += toctree(["0*"], ":glob:")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension with Sphinx."""
    app.connect("source-read", add_navigation)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
