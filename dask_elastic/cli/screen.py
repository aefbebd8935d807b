"""Repeated output: in a terminal a text overwrites the previous one, elsewhere texts follow each other."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

UP_AND_CLEAR = "\x1b[{lines}A\x1b[J"


class Screen:
    """Shows the newest of several texts.

    Parameters
    ----------
    stream : file, optional
        The output; standard output by default.
    """

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream or sys.stdout
        self.rewrites = self.stream.isatty()
        self._lines = 0

    def show(self, text: str) -> None:
        """Show a text in place of the previous one."""
        if not self.rewrites:
            self.stream.write(text + "\n")
            self.stream.flush()
            return
        shown = self._fitting(text)
        if self._lines:
            self.stream.write(UP_AND_CLEAR.format(lines=self._lines))
        self.stream.write("\n".join(shown) + "\n")
        self.stream.flush()
        self._lines = len(shown)

    @staticmethod
    def _fitting(text: str) -> list[str]:
        """Crop a text to the terminal: lines that wrap or scroll cannot be overwritten."""
        columns, rows = shutil.get_terminal_size()
        lines = [line[: columns - 1] for line in text.splitlines()]
        room = max(1, rows - 1)
        if len(lines) <= room:
            return lines
        kept = max(0, room - 1)
        return [*lines[:kept], f"... and {len(lines) - kept} more lines"[: columns - 1]]
