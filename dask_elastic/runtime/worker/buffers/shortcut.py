"""The way of pushed rows past the threads of their source, in the thread that has received them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Self

import pyarrow as pa

from dask_elastic.meters import BriefWork, InlineCost
from dask_elastic.meters.brief_work import BRIEF_SECONDS, FEW_ROWS
from dask_elastic.runtime.worker.buffers.read_ahead import ReadAhead
from dask_elastic.topology.source import Convert, Source
from dask_elastic.vocab.batch import Delivery

USUAL_SECONDS = 0.001
"""Rows take the shortcut if sending a batch, with all that this thread then runs, usually takes no longer."""


Guarded = Callable[[Callable[[], None]], Callable[[], None]]
"""Adds what happens if a function raises."""


class Sent(NamedTuple):
    """What has become of rows that a source has sent without waiting.

    Parameters
    ----------
    rows : RecordBatch
        The rows.
    nbytes : int
        Bytes of the outputs that have left.
    left : sequence of Delivery
        Outputs that lack credit.
    """

    rows: pa.RecordBatch
    nbytes: int
    left: Sequence[Delivery]


class Shortcut:
    """Sends few pushed rows in the thread that has received them, while the source's own threads have nothing to do.

    Parameters
    ----------
    read_ahead : ReadAhead
        Lets one thread at a time send.
    convert : callable
        Does to a batch what reading does; see `Source.converts`.
    send : callable
        ``send(rows, due)`` sends without waiting for credit. Returns whether there is a rest, which it has kept for the
        thread that takes from `read_ahead`.
    cost, brief_work : InlineCost, BriefWork
        Measures of sending.
    explained : callable
        Returns a context in which errors of the source are explained.
    guarded : callable
        Returns a function that runs something and fails the job if that raises.

    Notes
    -----
    A thread that calls `begin`, and gets True, calls `send` next. The thread belongs to the connection of one client:
    this client's next rows wait meanwhile, but neither credit nor heartbeats do, which come from other workers.
    """

    def __init__(
        self,
        read_ahead: ReadAhead,
        convert: Convert,
        send: Callable[[pa.RecordBatch, float], bool],
        cost: InlineCost,
        brief_work: BriefWork,
        explained: Callable[[], AbstractContextManager[None]],
        guarded: Guarded,
    ):
        self._read_ahead = read_ahead
        self._convert = convert
        self._send = send
        self._cost = cost
        self._brief_work = brief_work
        self._explained = explained
        self._guarded = guarded

    @classmethod
    def of(
        cls,
        source: Source,
        read_ahead: ReadAhead,
        send: Callable[[pa.RecordBatch, float], bool],
        cost: InlineCost,
        brief_work: BriefWork,
        explained: Callable[[], AbstractContextManager[None]],
        guarded: Guarded,
    ) -> Self | None:
        """Return the shortcut of a source; None if it has to read all rows."""
        convert = conversion_of(source) if source.pushed else None
        return None if convert is None else cls(read_ahead, convert, send, cost, brief_work, explained, guarded)

    def begin(self, rows: int) -> bool:
        """Return whether the calling thread sends so many rows; nothing else is sent until it has."""
        return self._are_brief(rows) and self._read_ahead.begin()

    def _are_brief(self, rows: int) -> bool:
        cost = self._cost
        is_usual = rows <= FEW_ROWS and self._brief_work.is_brief and cost.allows(1, USUAL_SECONDS)
        return is_usual and cost.allows(rows, BRIEF_SECONDS)

    def send(self, rows: pa.RecordBatch, due: float) -> bool:
        """Send rows, or leave what lacks credit; returns False if that has failed, and with it the job.

        Parameters
        ----------
        rows : RecordBatch
            The rows, as they were pushed.
        due : float
            When they were due, in seconds since the epoch.
        """
        succeeded = False

        def send() -> None:
            nonlocal succeeded
            rest = False
            try:
                with self._explained():
                    read = self._convert(rows)
                rest = read.num_rows > 0 and self._send(read, due)
            finally:
                self._read_ahead.end(rest)
            succeeded = True

        self._guarded(send)()
        return succeeded


def conversion_of(source: Source) -> Convert | None:
    """Return what reading does to each pushed batch; None if it does more, as far as the source says.

    A class that overrides `read`, and not `converts`, reads in its own way.

    Parameters
    ----------
    source : Source
        The source.
    """
    for kind in type(source).__mro__:
        if "converts" in vars(kind):
            return source.converts()
        if "read" in vars(kind):
            return None
    return None
