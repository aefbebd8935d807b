"""Which results of sessions are due, and which earlier ones they replace."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_elastic.executor.windows.event_times import Times
from dask_elastic.executor.windows.partials import Chains, Groups
from dask_elastic.state.slot_search import Mask
from dask_elastic.state.window_fields import FAILED, NO_END, NOT_CLOSED

Numbers = npt.NDArray[np.int64]
Positions = npt.NDArray[np.intp]


class Shown(NamedTuple):
    """The results that were emitted last, each at one of the cells of its session.

    Parameters
    ----------
    starts, ends : ndarray of int64
        The bounds; the end is `NO_END` at cells without a result.
    revisions : ndarray of int64
        Their revisions; `NOT_CLOSED` if the session was open, `FAILED` if its result was none because it raised.
    """

    starts: Times
    ends: Times
    revisions: Numbers


class Amended(NamedTuple):
    """Results of sessions, and those that they replace.

    Parameters
    ----------
    groups : Groups
        The cells of each session that has a result.
    starts, ends : ndarray of int64
        Its bounds.
    revisions : ndarray of int64
        The revision of its result.
    replaced : Shown
        The results that are withdrawn, with the revisions of the withdrawals.
    replaced_by : ndarray of intp
        For each of these, the number of the session that its rows are in now.
    shown : Shown
        What is emitted last, of each cell.
    fresh : ndarray of bool
        The cells with rows that are in no result yet.
    changed : ndarray of bool
        The cells for which one of these has changed.
    known : ndarray of bool
        The sessions of which a result with the same bounds was emitted before.
    """

    groups: Groups
    starts: Times
    ends: Times
    revisions: Numbers
    replaced: Shown
    replaced_by: Positions
    shown: Shown
    fresh: Mask
    changed: Mask
    known: Mask

    def failing(self, failed: Mask) -> Amended:
        """Return the same without the results of some sessions, which raise.

        They are not made again when a watermark arrives. A result with the same bounds that was emitted before stays.
        """
        cells = self.groups.firsts[failed & ~self.known]
        revisions = self.shown.revisions.copy()
        revisions[cells] = FAILED
        return self._replace(shown=self.shown._replace(revisions=revisions))

    @classmethod
    def of(cls, chains: Chains, shown: Shown, fresh: Mask, until: int, touched: Mask | None, updates: bool) -> Amended:
        """Return the results that are due.

        A session has grown, or has been joined from several, if its bounds differ from those that were emitted for any
        of its cells: these results are withdrawn.

        Parameters
        ----------
        chains : Chains
            The sessions of some keys.
        shown : Shown
            What was emitted last, of each cell.
        fresh : ndarray of bool
            The cells with rows that are in no result yet. Those of a closed session wait for its close to be repeated,
            after a restore has set back the event time.
        until : int
            The event time up to which sessions are closed.
        touched : ndarray of bool or None
            The cells that have new rows. None if a watermark closes sessions.
        updates : bool
            Whether sessions with new rows have results before they are closed.

        Returns
        -------
        Amended
            The results.
        """
        cells, lengths = chains.groups
        count = len(lengths)
        session = np.empty(len(cells), np.intp)
        session[cells] = np.repeat(np.arange(count), lengths)
        before = np.flatnonzero(shown.ends != NO_END)
        of_before = session.take(before)
        same = (shown.starts.take(before) == chains.starts.take(of_before)) & (
            shown.ends.take(before) == chains.ends.take(of_before)
        )
        revisions = np.full(count, NOT_CLOSED)
        revisions[of_before[same]] = shown.revisions.take(before[same])
        closed = chains.ends <= until
        if touched is None:
            due = closed & (revisions == NOT_CLOSED)
            due[session[fresh]] |= closed[session[fresh]]
        else:
            due = np.zeros(count, np.bool_)
            due[session[touched]] = True
            due &= closed | updates
        emitted = shown.revisions.take(before) != FAILED
        known = np.zeros(count, np.bool_)
        known[of_before[same & emitted]] = True
        revisions = np.where(closed, np.maximum(revisions, NOT_CLOSED) + 1, NOT_CLOSED)
        replaced = before[~same & emitted & due.take(of_before)]
        replaced = replaced[np.argsort(shown.starts.take(replaced), kind="stable")]
        after, changed = _moved(shown, before[due.take(of_before)], chains, due, revisions)
        told = fresh & due.take(session)
        numbers = np.cumsum(due) - 1
        return cls(
            chains.groups.chosen(due),
            chains.starts[due],
            chains.ends[due],
            revisions[due],
            _withdrawn(shown, replaced),
            numbers.take(session.take(replaced)),
            after,
            fresh & ~told,
            changed | told,
            known[due],
        )


def _withdrawn(shown: Shown, cells: Positions) -> Shown:
    starts, ends, revisions = (column.take(cells) for column in shown)
    return Shown(starts, ends, np.where(revisions == NOT_CLOSED, NOT_CLOSED, revisions + 1))


def _moved(shown: Shown, before: Positions, chains: Chains, due: Mask, revisions: Numbers) -> tuple[Shown, Mask]:
    """Return what is emitted last when results that are due have replaced those at some cells."""
    after = Shown(*(column.copy() for column in shown))
    after.ends[before], after.revisions[before] = NO_END, NOT_CLOSED
    firsts = chains.groups.firsts[due]
    for column, values in zip(after, (chains.starts, chains.ends, revisions), strict=True):
        column[firsts] = values[due]
    changed = np.zeros(len(shown.ends), np.bool_)
    changed[before] = changed[firsts] = True
    return after, changed
