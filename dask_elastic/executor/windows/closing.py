"""Results of instances that close: which ones, and their state, merged from the cells that a search has found."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dask_elastic.executor.windows.bound_windows import BoundWindows
from dask_elastic.executor.windows.cells import EventCells
from dask_elastic.executor.windows.event_times import Times
from dask_elastic.executor.windows.known_cells import KnownCells
from dask_elastic.executor.windows.partials import Partials
from dask_elastic.executor.windows.session_cells import SessionCells
from dask_elastic.state.index import Slots
from dask_elastic.state.slot_search import Found, Mask
from dask_elastic.state.slots import Column, SlotArrays
from dask_elastic.state.windows.instance_marks import has_mark, unmarked
from dask_elastic.vocab.window_costs import WindowCosts
from dask_elastic.vocab.window_side import WindowSide

Values: TypeAlias = Callable[[int, int], list[Column]]
"""Returns the state of a range of results."""


class Closing(NamedTuple):
    """Results to be: the position of a partial of each one's key, the instances, and the state of a range of them.

    `expired` says which of the cells no later result needs; `merged` is the number of keys of partials that are merged
    into the results, 0 if these have a partial each.
    """

    firsts: npt.NDArray[np.intp]
    starts: Times
    ends: Times
    values: Values
    expired: Mask
    merged: int = 0


def touched(
    bound: BoundWindows,
    cells: EventCells | SessionCells,
    until: int,
    side: WindowSide | None,
    arrays: SlotArrays,
    window: slice,
) -> Mask:
    """Return the cells that may be of instances that end up to a time, or expire then."""
    if isinstance(cells, SessionCells):
        begun: Mask = arrays.values[bound.own][window] < until
        return begun
    ended: Mask = arrays.values[bound.own + 1][window] <= until
    if side is None:
        return ended
    starts = arrays.values[bound.own][window]
    return ended & cells.on_side(unmarked(starts), has_mark(starts), side)


def closed_cells(bound: BoundWindows, found: Found, cells: EventCells, since: int, until: int) -> Closing:
    """Return the results of cells that are instances, and end later than `since` and not later than `until`."""
    starts, ends = found.values[bound.own : bound.own + 2]
    order = np.lexsort((starts, ends))
    # Those that have ended before are kept for corrections.
    order = order[np.searchsorted(ends, since, side="right", sorter=order) :]

    def values(start: int, stop: int) -> list[Column]:
        chosen = order[start:stop]
        return [column.take(chosen) for column in found.values[: bound.own]]

    return Closing(order, starts.take(order), ends.take(order), values, cells.expired(starts, ends, until))


def closed_sessions(bound: BoundWindows, found: Found, gap: int, until: int) -> Closing:
    """Return the results of sessions that end not later than `until`, each merged from the cells of a key."""
    firsts, lasts, hashes, checks = found.values[bound.own :]
    partials = Partials(bound.bundle, found.values[: bound.own], firsts, hashes, checks)
    chains = partials.chained(lasts, gap)
    closed = chains.ends <= until
    groups = chains.groups.chosen(closed)
    expired = np.zeros(len(firsts), np.bool_)
    expired[groups.partials] = True
    values = partial(partials.merged, groups)
    return Closing(groups.firsts, chains.starts[closed], chains.ends[closed], values, expired)


def merged_slices(
    bound: BoundWindows, found: Found, cells: EventCells, ordinals: Slots, since: int, until: int
) -> Closing:
    """Return the results of instances that end later than `since` and not later than `until`, merged from slices.

    Each is merged from its slices and from the partial of the instance itself, if there is one.
    """
    stored, ends, hashes, checks = found.values[bound.own : bound.own + 4]
    own, starts = has_mark(stored), unmarked(stored)
    values = found.values[: bound.own]
    partials = Partials(bound.bundle, values, starts, hashes, checks, ordinals, (own, ends))
    instances = cells.closing(starts, since, until)
    parts = [partials.within(begin, end) for begin, end in instances]
    made = closed_instances(
        [
            (begin, end, len(groups.lengths), partial(partials.merged, groups))
            for (begin, end), groups in zip(instances, parts, strict=True)
        ]
    )
    firsts = np.concatenate([np.empty(0, np.intp), *(groups.firsts for groups in parts)])
    expired = np.where(own, ends <= until - cells.lateness, cells.expired(starts, ends, until))
    merged = 0 if own.all() else sum(len(groups.partials) for groups in parts)
    return made._replace(firsts=firsts, expired=expired, merged=merged)


def closed_instances(parts: list[tuple[int, int, int, Values]]) -> Closing:
    """Return the results of instances, each given by its begin, its end, the number of its keys, and their state.

    Parameters
    ----------
    parts : list of tuple
        The instances.

    Returns
    -------
    Closing
        Without positions of partials.
    """
    lengths = [count for _, _, count, _ in parts]
    starts, ends = (np.repeat(np.array([part[side] for part in parts], np.int64), lengths) for side in (0, 1))

    def values_of(start: int, stop: int) -> list[Column]:
        found: list[list[Column]] = []
        first = 0
        for _, _, count, values in parts:
            begin, end = max(start, first) - first, min(stop, first + count) - first
            if begin < end:
                found.append(values(begin, end))
            first += count
        return found[0] if len(found) == 1 else [_joined(columns) for columns in zip(*found, strict=True)]

    return Closing(np.empty(0, np.intp), starts, ends, values_of, np.empty(0, np.bool_))


def closing_of(
    bound: BoundWindows, found: Found, cells: EventCells | SessionCells, known: KnownCells, since: int, until: int
) -> Closing:
    """Return the results of cells that a search has found, whatever these are."""
    if isinstance(cells, SessionCells):
        return closed_sessions(bound, found, cells.gap, until)
    if not cells.merges:
        return closed_cells(bound, found, cells, since, until)
    hashes, checks = found.values[bound.own + 2 : bound.own + 4]
    return merged_slices(bound, found, cells, known.ordinals(hashes, checks if checks.any() else None), since, until)


def closing_costs(made: Closing | None, share: float, separate: bool, seconds: float) -> WindowCosts:
    """Return what closing instances has cost.

    Parameters
    ----------
    made : Closing or None
        The results; None if there are none.
    share : float
        Of which share of the executor's shards they are.
    separate : bool
        Whether rows are added to instances: decides of what the partials are if there are no results.
    seconds : float
        The CPU seconds of closing them.

    Returns
    -------
    WindowCosts
        The costs.
    """
    if made is None or not len(made.starts):
        return WindowCosts(closing=seconds) if separate else WindowCosts(merging=seconds)
    # Results are in the order of ends and begins.
    changes = int(np.count_nonzero((np.diff(made.starts) != 0) | (np.diff(made.ends) != 0)))
    common = WindowCosts(results=len(made.starts), instances=share * (1 + changes))
    if made.merged:
        return common._replace(merged=made.merged, merging=seconds)
    return common._replace(apart=len(made.starts), closing=seconds)


def _joined(columns: tuple[Column, ...]) -> Column:
    first = columns[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(columns)
    lengths = np.concatenate([column.lengths for column in columns])
    return type(first).of_lengths(np.concatenate([column.values for column in columns]), lengths)
