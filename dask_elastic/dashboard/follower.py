"""Keeps figures up to date with a tape: all of it once, then only what is new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dask_elastic.dashboard.tape import Rows, Tape


class Drawn(Protocol):
    """Something that draws a tape."""

    def begin(self, tape: Tape, rows: Rows) -> None:
        """Draw a tape from all of its rows, and nothing of any other."""

    def extend(self, rows: Rows) -> None:
        """Draw further rows of the same tape."""


class Follower:
    """One viewer's place on a tape.

    Parameters
    ----------
    drawn : sequence of Drawn
        What shows it.
    """

    def __init__(self, drawn: Sequence[Drawn]):
        self._drawn = drawn
        self._tape: Tape | None = None
        self._run = 0
        self._end = 0

    def update(self, tape: Tape) -> None:
        """Draw what has come since, or everything where the tape is another one or has begun anew."""
        begins = tape is not self._tape or tape.run != self._run
        if begins:
            self._tape, self._run, self._end = tape, tape.run, 0
        rows = tape.since(self._end)
        self._end = tape.end
        for figure in self._drawn if len(rows) else ():
            if begins:
                figure.begin(tape, rows)
            else:
                figure.extend(rows)
