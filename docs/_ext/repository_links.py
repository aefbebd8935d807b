"""Links of Markdown files that work in a checkout, turned into links that work on the site.

The pages in docs/ link to files outside it, such as ``../examples/word_count.py``; the site shows these files on pages
of its own. Files at the top of the repository, such as README.md, are shown by pages that include them with
``:parser: repository_links``; their links to ``docs/`` lose that folder.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from myst_parser.sphinx_ import Parser as MystParser
from sphinx.application import Sphinx

EXAMPLE = re.compile(r"\]\((?:\.\./)?examples/(\w+)\.(?:py|ipynb)\)")
PAGES = {
    "examples": "examples.rst",
    "README.md": "readme.rst",
    "CONTRIBUTING.md": "contributing.rst",
    "CHANGELOG.md": "changelog.rst",
}
PAGE = re.compile(r"\]\((?:\.\./)?(" + "|".join(map(re.escape, PAGES)) + r")\)")
LICENSE = re.compile(r"\[([^\]]*)\]\((?:\.\./)?LICENSE\)")


def turned(text: str) -> str:
    """Return a page's text with links to pages of the site in place of links to files outside docs/."""
    text = EXAMPLE.sub(lambda link: f"](#example-{link[1].replace('_', '-')})", text)
    text = PAGE.sub(lambda link: f"]({PAGES[link[1]]})", text)
    return LICENSE.sub(r"\1", text)


class Parser(MystParser):
    """Parses a file from the top of the repository as a page of docs/."""

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Turn the links, then parse Markdown."""
        super().parse(turned(inputstring.replace("](docs/", "](")), document)


def turn_links(app: Sphinx, docname: str, source: list[str]) -> None:
    """Turn the links of a page before Sphinx parses it."""
    # In docs/decisions, README.md is the folder's own.
    if "/" not in docname:
        source[0] = turned(source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension with Sphinx."""
    app.connect("source-read", turn_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
