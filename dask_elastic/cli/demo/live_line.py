"""The progress line of the replay."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO


class LiveLine:
    """A line that is overwritten in a terminal; elsewhere, it is printed at intervals.

    Parameters
    ----------
    every : float
        Seconds between two lines outside of a terminal.
    stream : file, optional
        The output; standard output by default.
    """

    def __init__(self, every: float = 5.0, stream: TextIO | None = None):
        self._stream = stream or sys.stdout
        self._rewrites = self._stream.isatty()
        self._every = every
        self._last = float("-inf")
        self._open = False

    def show(self, text: str) -> None:
        """Show the current progress."""
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            print("\r" + text[:width].ljust(width), end="", file=self._stream, flush=True)
            self._open = True
        elif time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            print(text, file=self._stream, flush=True)

    def print_line(self, text: str) -> None:
        """Print a permanent line, above the progress line."""
        if self._open:
            width = shutil.get_terminal_size().columns - 1
            print("\r" + " " * width + "\r", end="", file=self._stream)
        print(text, file=self._stream, flush=True)
        self._open = False

    def close(self) -> None:
        """Keep the last progress, and continue on the next line."""
        print("\n" * self._open, end="", file=self._stream, flush=True)
        self._open = False
