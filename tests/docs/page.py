"""Runs the code of a documentation page: ``python page.py README.md`` prints the output of each block.

The Python blocks of a page run in order in one namespace. A text block directly after one of them is its output.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```\n?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of Python on a page: number of its first line, code, and the output that the page shows."""

    line: int
    code: str
    prints: str | None


def blocks(text: str) -> list[Block]:
    """Return the Python blocks of a page."""
    found: list[Block] = []
    matches = [*BLOCK.finditer(text)]
    for match, following in zip_longest(matches, matches[1:]):
        if match["language"] != "python":
            continue
        shown = None
        if following is not None and following["language"] == "text" and following.start() == match.end():
            shown = following["body"]
        found.append(Block(text.count("\n", 0, match.start()) + 2, match["body"], shown))
    return found


def run(path: Path) -> list[str]:
    """Run a page's blocks and return what each printed."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed = []
    for block in blocks(path.read_text(encoding="utf-8")):
        # The line numbers of a traceback then match the page.
        code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, namespace)
        printed.append(out.getvalue())
    return printed


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]))))
