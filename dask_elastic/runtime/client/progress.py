"""The live line of a job in a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from dask_elastic.runtime.client.job_view import one_line
from dask_elastic.runtime.protocol.job_description import JobDescription

POLL_SECONDS = 0.25


class Progress:
    """Rewrites one line while a job runs.

    Parameters
    ----------
    shown : bool or None
        Whether to show the line; None shows it in a terminal only.
    stream : file, optional
        Where to write it; standard error if left out, which leaves standard output to the program.

    Attributes
    ----------
    follows : bool
        Whether the job of `follow` has not ended yet, as far as is known.
    """

    def __init__(self, shown: bool | None = None, stream: TextIO | None = None):
        self.stream = stream or sys.stderr
        self.shown = self.stream.isatty() if shown is None else shown
        self.follows = True
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def follow(self, wait: Callable[[float], JobDescription], deadline: float | None = None) -> JobDescription:
        """Show a job until it has ended and changes its folder no more, or until a deadline; returns the newest state.

        Parameters
        ----------
        wait : callable
            Describes the job when it has ended, or after so many seconds.
        deadline : float or None
            By the monotonic clock; None for none.
        """
        described = wait(0.0)
        while described.awaited:
            self.follows = described.live
            self.show(described)
            left = POLL_SECONDS if deadline is None else min(POLL_SECONDS, deadline - time.monotonic())
            if left <= 0:
                return described
            described = wait(left)
        self.show(described)
        return described

    def show(self, described: JobDescription) -> None:
        """Show a job in the line."""
        if not self.shown:
            return
        # A line that wraps cannot be overwritten.
        line = one_line(described)[: shutil.get_terminal_size().columns - 1]
        self.stream.write("\r" + line.ljust(self._width))
        self.stream.flush()
        self._width = len(line)

    def say(self, text: str) -> None:
        """Print a line below, whether or not the live line is shown."""
        self.stream.write(("\n" if self._width else "") + text + "\n")
        self._width = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            self.stream.write("\n")
            self.stream.flush()
