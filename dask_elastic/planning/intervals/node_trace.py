"""Node traces: the number of nodes that a recorded stream needs per interval of time, and its transitions.

Goal
    A trace of node counts from times of arrival, and the transition matrix of the month before a moment.
Heuristic
    Nodes in proportion to the arrivals of an interval, without smoothing.
Not done
    A model of latency: the capacity of a node follows from the range of node counts.

Notes
-----
State migration (Ding et al.), section 6: arrivals are counted by the hour, "the number of nodes is normalized into the
range of [8, 16]", and the matrix is from "data from the previous month". The normalisation is not given; here the
interval with fewest arrivals gets fewest nodes, that with most arrivals most nodes, and others in proportion.
ERRATA has no entry for the trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_elastic.planning.checked_arrays import Ints
from dask_elastic.planning.intervals.load_limit import checked_nodes
from dask_elastic.planning.intervals.transition_matrix import transition_matrix
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import as_floats, check_total, is_number

MONTH = np.timedelta64(30, "D")


@dataclass(frozen=True, eq=False)
class NodeTrace:
    """The number of nodes that a stream needs in each interval of time.

    Parameters
    ----------
    start : datetime64
        When the first interval begins.
    interval : timedelta64
        Length of an interval.
    nodes : array of int
        The nodes of each interval.

    Raises
    ------
    PlanningError
        If the interval is not positive, or a count is no whole number of 1 or more.

    Examples
    --------
    >>> trace = NodeTrace(np.datetime64("2011-10-01T00"), np.timedelta64(1, "h"), [8, 8, 9, 8])
    >>> trace.migrations.tolist()
    [8, 9, 8]
    >>> trace.matrix_before(np.datetime64("2011-10-01T04"))
    {8: {9: 1.0}, 9: {8: 1.0}}
    """

    start: np.datetime64
    interval: np.timedelta64
    nodes: Ints

    def __post_init__(self) -> None:
        _checked_interval(self.interval)
        counts = np.array(self.nodes)
        if counts.ndim != 1 or (counts.size and (counts.dtype.kind not in "iu" or counts.min() < 1)):
            raise PlanningError(
                f"nodes has shape {counts.shape} and type {counts.dtype}: give whole numbers of 1 or more, in order."
            )
        counts = counts.astype(np.int64)
        counts.flags.writeable = False
        object.__setattr__(self, "nodes", counts)

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def times(self) -> NDArray[np.datetime64]:
        """When each interval begins."""
        return np.asarray(self.start + np.arange(len(self.nodes)) * self.interval)

    @property
    def migrations(self) -> Ints:
        """The counts that differ from the one before, and the first: each except the first is a migration."""
        changed = np.append(True, np.diff(self.nodes) != 0)[: len(self.nodes)]
        result: Ints = self.nodes[changed]
        return result

    def between(self, begin: np.datetime64, end: np.datetime64) -> NodeTrace:
        """Return the intervals that begin from `begin` on and before `end`."""
        inside = np.flatnonzero((self.times >= begin) & (self.times < end))
        first = int(inside[0]) if inside.size else 0
        return NodeTrace(self.start + first * self.interval, self.interval, self.nodes[inside])

    def matrix_before(
        self, moment: np.datetime64, history: np.timedelta64 = MONTH, drop_self: bool = True
    ) -> dict[int, dict[int, float]]:
        """Return the transition matrix of the time before a moment.

        Parameters
        ----------
        moment : datetime64
            The end of the history.
        history : timedelta64
            The length of the history.
        drop_self : bool
            Leave out intervals that need as many nodes as the one before.

        Returns
        -------
        dict of dict
            For each number of nodes the probability of each that followed.

        Raises
        ------
        PlanningError
            If the count does not change in the history.

        Notes
        -----
        State migration, section 6.
        """
        part = self.between(moment - history, moment)
        matrix = transition_matrix(part.nodes, drop_self)
        if not matrix:
            raise PlanningError(
                f"{len(part)} intervals begin within {history} before {moment}, and the number of nodes never changes "
                "in them: give a later moment or a longer history."
            )
        return matrix


def arrivals(times: ArrayLike, interval: np.timedelta64) -> tuple[np.datetime64, Ints]:
    """Count the arrivals of each interval of time.

    Parameters
    ----------
    times : array of datetime64
        When each tuple arrives, in any order.
    interval : timedelta64
        Length of an interval. Intervals begin at multiples of it since 1970.

    Returns
    -------
    datetime64
        When the first interval begins, the one of the earliest arrival.
    array of int
        One count an interval, up to that of the latest arrival; empty ones are 0.

    Raises
    ------
    PlanningError
        If nothing arrives, a time is missing, or the interval is not positive.

    Notes
    -----
    State migration, section 6.

    Examples
    --------
    >>> times = np.array(["2011-10-01T07:10", "2011-10-01T09:01", "2011-10-01T07:59"], dtype="datetime64[s]")
    >>> arrivals(times, np.timedelta64(1, "h"))
    (np.datetime64('2011-10-01T07:00:00'), array([2, 0, 1]))
    """
    _checked_interval(interval)
    moments = np.asarray(times)
    if moments.ndim != 1 or moments.dtype.kind != "M" or not len(moments):
        raise PlanningError(
            f"times has shape {moments.shape} and type {moments.dtype}: give the moments of arrival, one at least."
        )
    missing = np.flatnonzero(np.isnat(moments))
    if missing.size:
        raise PlanningError(f"time {int(missing[0])} is missing: give moments of arrival only.")
    number = (moments - np.datetime64(0, "s")) // interval
    first = int(number.min())
    counts: Ints = np.bincount(number - first).astype(np.int64)
    return np.datetime64(0, "s") + first * interval, counts


def nodes_needed(counts: ArrayLike, least: int = 8, most: int = 16, peak: float = 1.0) -> Ints:
    """Return the nodes for each count of arrivals, normalised into a range.

    Parameters
    ----------
    counts : array of float
        The arrivals of each interval.
    least, most : int
        The range: nodes for the lowest and for the highest count.
    peak : float
        The quantile of counts that needs `most` nodes; higher counts get no more. Otherwise rare bursts would leave
        all other intervals near `least`.

    Returns
    -------
    array of int
        Rounded, halves to even. All `least` where counts do not differ.

    Raises
    ------
    PlanningError
        If an argument is out of range.

    Notes
    -----
    State migration, section 6. The paper's range is 8 to 16, without a quantile: a `peak` of 1.

    Examples
    --------
    >>> nodes_needed([0, 50, 100, 75]).tolist()
    [8, 12, 16, 14]
    """
    values = as_floats("counts", counts)
    if values.ndim != 1 or not (np.isfinite(values) & (values >= 0)).all():
        raise PlanningError(f"counts has shape {values.shape}: give one finite number of 0 or more for each interval.")
    if checked_nodes(least) > checked_nodes(most):
        raise PlanningError(f"least is {least!r} and most {most!r}: give a range in ascending order.")
    if not (is_number(peak) and 0 < peak <= 1):
        raise PlanningError(f"peak is {peak!r}: give a quantile, more than 0 and up to 1.")
    check_total("counts", values)
    if not values.size:
        return np.empty(0, dtype=np.int64)
    low, high = float(values.min()), float(np.quantile(values, peak))
    if high <= low:
        return np.full(len(values), int(least), dtype=np.int64)
    share = np.clip((values - low) / (high - low), 0.0, 1.0)
    return np.rint(least + share * (most - least)).astype(np.int64)


def node_trace(
    times: ArrayLike, interval: np.timedelta64, least: int = 8, most: int = 16, peak: float = 1.0
) -> NodeTrace:
    """Return the trace of nodes that arrivals need.

    Parameters
    ----------
    times : array of datetime64
        When each tuple arrives, in any order.
    interval : timedelta64
        Length of an interval, an hour in the paper.
    least, most : int
        The range of nodes.
    peak : float
        The quantile of counts that needs `most` nodes.

    Returns
    -------
    NodeTrace
        From the interval of the earliest arrival to that of the latest.

    Raises
    ------
    PlanningError
        As `arrivals` and `nodes_needed`.

    Notes
    -----
    State migration, section 6.

    Examples
    --------
    >>> times = np.datetime64("2011-10-01T00:00") + np.array([1, 2, 3, 61, 125, 126]) * np.timedelta64(1, "m")
    >>> node_trace(times, np.timedelta64(1, "h")).nodes.tolist()
    [16, 8, 12]
    """
    start, counts = arrivals(times, interval)
    return NodeTrace(start, interval, nodes_needed(counts, least, most, peak))


def _checked_interval(interval: np.timedelta64) -> None:
    if not isinstance(interval, np.timedelta64) or not int(interval.astype(np.int64)) > 0:
        raise PlanningError(f"interval is {interval!r}: give a positive numpy.timedelta64, such as one hour.")
