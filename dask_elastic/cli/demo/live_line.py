"""How the replay stands, in one line."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO


class LiveLine:
    """One line that is rewritten in a terminal, and printed now and then where there is none.

    Parameters
    ----------
    every : float
        Seconds between two lines outside of a terminal.
    stream : file, optional
        Where to; standard output if left out.
    """

    def __init__(self, every: float = 5.0, stream: TextIO | None = None):
        self._stream = stream or sys.stdout
        self._rewrites = self._stream.isatty()
        self._every = every
        self._last = float("-inf")
        self._open = False

    def show(self, text: str) -> None:
        """Show how it stands now."""
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            print("\r" + text[:width].ljust(width), end="", file=self._stream, flush=True)
            self._open = True
        elif time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            print(text, file=self._stream, flush=True)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._open:
            width = shutil.get_terminal_size().columns - 1
            print("\r" + " " * width + "\r", end="", file=self._stream)
        print(text, file=self._stream, flush=True)
        self._open = False

    def close(self) -> None:
        """Leave the line as it is, and go on below it."""
        print("\n" * self._open, end="", file=self._stream, flush=True)
        self._open = False
