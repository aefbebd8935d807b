"""The costs of a row, of a merge and of a result of windows, from what was measured while they run.

Goal
    Costs by which both plans can be predicted while only one of them runs.
Method
    A batch takes a time of its own, whatever it contains, and a time for each pair of a row and a partial. Rehearsals
    tell the second one, and what is left is the first. Without any, both follow from the sums of `WindowCosts` by least
    squares if the fit is good enough: if the sizes of batches differ, and few batches take much longer than others, as
    the first ones do, or those on a busy machine. Otherwise, half of the time is that of batches at most, or what is
    left if a pair costs the most that the fit permits: in small batches, most of the time may be theirs. The rest are
    ratios. What is not measured yet is that of counts and sums.
Not done
    The caches of the processor, which make a pair cost more where there are more partials.

Notes
-----
Enorm, section 5.1.1: E, the average cost of a tuple; K, here the keys of a result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dask_elastic.vocab.window_costs import WindowCosts

BATCH_COST, ROW_COST = 1e-4, 2e-8
"""CPU seconds to add a batch without rows, and for each pair of a row and a partial, of a few counts and sums."""

MERGE_COST, RESULT_COST = 3e-8, 4e-7
"""CPU seconds per merged key when instances of slices close, and per result of instances with partials of their own."""

LOOKUP_COST = 1.5e-7
"""CPU seconds to look up a slice of a key and to merge it into the open instances that a batch has changed."""

LEAST_BATCHES = 20
"""So many batches are needed for a fit."""

LEAST_SPREAD = 0.1
"""The sizes of batches must vary by this share of their mean for a fit."""

MOST_ERROR = 0.2
"""The standard error of the cost of a pair, as a share of it, up to which a fit is good."""

STANDARD_ERRORS = 2
"""A pair costs at most so many standard errors more than by the fit."""


@dataclass(frozen=True)
class UnitCosts:
    """What the partial results of a compute cost, in CPU seconds.

    Parameters
    ----------
    batch : float
        For a batch, whatever it contains.
    row : float
        For a row that is added to a partial, E.
    merge : float
        For a key of a partial, or of a shorter instance, that is merged into an instance of slices.
    result : float
        For a result of an instance that has a partial of its own.
    formed : float or None
        For a result that was merged from slices, with all of its merges; None if there is none yet.
    correction : float or None
        For a late row and a closed instance that it corrects, without lookups, where windows may share slices; None if
        that is not measured.
    lookup : float
        For a slice of a key that is looked up for updates and corrections, as counted by `update_lookups`, with its
        merges.
    measured : tuple of str
        Which of these are measured; the others are those of counts and sums.
    """

    batch: float = BATCH_COST
    row: float = ROW_COST
    merge: float = MERGE_COST
    result: float = RESULT_COST
    formed: float | None = None
    correction: float | None = None
    lookup: float = LOOKUP_COST
    measured: tuple[str, ...] = ()


COUNTS_AND_SUMS = UnitCosts()


def unit_costs(costs: WindowCosts | None) -> UnitCosts:
    """Return the costs that follow from sums.

    Parameters
    ----------
    costs : WindowCosts or None
        The sums; None if nothing is measured.

    Returns
    -------
    UnitCosts
        The costs.

    Examples
    --------
    >>> batches = [WindowCosts.of_batch(rows, rows, 1e-4 + rows * 5e-8) for rows in range(1000, 2000, 20)]
    >>> total = WindowCosts()
    >>> for one in batches:
    ...     total = total.plus(one)
    >>> found = unit_costs(total)
    >>> round(found.batch, 9), round(found.row, 12), found.measured
    (0.0001, 5e-08, ('batch', 'row'))
    """
    if costs is None:
        return COUNTS_AND_SUMS
    found: dict[str, float] = {}
    batch = COUNTS_AND_SUMS.batch
    if costs.tried > 0 and costs.batches > 0:
        found["row"] = costs.trying / costs.tried
        batch = found["batch"] = max(0.0, costs.adding - found["row"] * costs.pairs) / costs.batches
    elif costs.pairs > 0 and costs.batches > 0:
        fitted, is_sure = _fitted(costs)
        if is_sure:
            found["batch"] = fitted
        # The rest of each batch must be worth something, or the plans would not differ.
        batch = fitted if is_sure else max(fitted, min(BATCH_COST, 0.5 * costs.adding / costs.batches))
        found["row"] = max(0.0, costs.adding - batch * costs.batches) / costs.pairs
    if costs.merged > 0:
        found["merge"] = costs.merging / costs.merged
    if costs.apart > 0:
        found["result"] = costs.closing / costs.apart
    if costs.looked > 0:
        found["lookup"] = costs.consolidating / costs.looked
    formed = costs.results - costs.apart
    return UnitCosts(
        **(found | {"batch": batch}),
        formed=costs.merging / formed if formed > 0 else None,
        correction=costs.correcting / costs.corrections if min(costs.correcting, costs.corrections) > 0 else None,
        measured=tuple(found),
    )


def completed(units: UnitCosts, earlier: UnitCosts) -> UnitCosts:
    """Return costs in which those that are not measured are taken from earlier ones.

    Parameters
    ----------
    units, earlier : UnitCosts
        The costs.

    Returns
    -------
    UnitCosts
        The costs.

    Examples
    --------
    >>> found = completed(UnitCosts(row=5e-8, measured=("row",)), UnitCosts(result=1e-6, measured=("result",)))
    >>> found.row, found.result, found.measured
    (5e-08, 1e-06, ('row', 'result'))
    """
    names = [name for name in earlier.measured if name not in units.measured]
    formed = earlier.formed if units.formed is None else units.formed
    taken = {name: getattr(earlier, name) for name in names}
    return replace(units, **taken, formed=formed, measured=(*units.measured, *names))


def _fitted(costs: WindowCosts) -> tuple[float, bool]:
    """Return the cost of a batch by least squares, and whether that of a pair is sure.

    If it is not, a pair costs as much as the fit permits, so that a batch costs that at least; 0 if sizes vary too
    little, or the fit makes no sense.
    """
    count, mean = costs.batches, costs.pairs / costs.batches
    if count < LEAST_BATCHES:
        return 0.0, False
    variance = costs.squares / count - mean**2
    if variance < (LEAST_SPREAD * mean) ** 2:
        return 0.0, False
    row = (costs.products / count - mean * costs.adding / count) / variance
    batch = costs.adding / count - row * mean
    residual = max(0.0, costs.deviation / count - (costs.adding / count) ** 2 - row**2 * variance)
    error = math.sqrt(residual / (count - 2) / variance)
    if batch >= 0 and error < MOST_ERROR * row:
        return batch, True
    most = max(0.0, row) + STANDARD_ERRORS * error
    return (max(0.0, costs.adding / count - most * mean), False) if row > -STANDARD_ERRORS * error else (0.0, False)


def measured_keys(parts: Iterable[WindowCosts | None]) -> float | None:
    """Return the mean number of keys in the result of an instance, K.

    Parameters
    ----------
    parts : iterable of WindowCosts or None
        The sums of each executor, which have different keys.

    Returns
    -------
    float or None
        The number; None if an executor has no result yet.

    Examples
    --------
    >>> measured_keys([WindowCosts(results=300, instances=3), WindowCosts(results=100, instances=2)])
    150.0
    """
    found = [None if one is None or one.instances <= 0 else one.results / one.instances for one in parts]
    if not found or None in found:
        return None
    return sum(keys for keys in found if keys is not None)


class PartMeasure(NamedTuple):
    """What is measured of one executor with windows.

    Parameters
    ----------
    row_seconds : float or None
        Busy seconds per row, all work of its tasks included; None if not known.
    costs : WindowCosts or None
        What its partial results have cost; None if that is not measured.
    """

    row_seconds: float | None
    costs: WindowCosts | None


@dataclass(frozen=True)
class MeasuredCosts:
    """What is measured of all executors of a compute.

    Parameters
    ----------
    units : UnitCosts
        What rows, merges and results cost.
    other : float
        CPU seconds per row that do not depend on the plan: routing, hashing, batches, evaluating columns, rows of
        results of open instances.
    keys : float or None
        The keys of a result, K; None if an executor has no result yet.
    instances : float
        The instances that were closed, as the mean of the executors.
    rows : float
        The rows of all of this.
    corrected : float
        Closed instances that a row corrects, on average.
    updates, lookups : float
        Results of open instances for a row, on average; and the slices of keys that it takes to consolidate them, and
        closed instances that it is the first to correct, as counted by `update_lookups`, with either plan.
    """

    units: UnitCosts
    other: float
    keys: float | None
    instances: float
    rows: float = 0.0
    corrected: float = 0.0
    updates: float = 0.0
    lookups: float = 0.0


def measured_costs(parts: Sequence[PartMeasure]) -> MeasuredCosts:
    """Return what the measures of executors say together.

    Parameters
    ----------
    parts : sequence of PartMeasure
        The executors.

    Returns
    -------
    MeasuredCosts
        The costs; those of counts and sums, and no others, where nothing is measured.

    Examples
    --------
    >>> costs = WindowCosts(rows=500, batches=10, pairs=1000, adding=0.002, results=60, instances=2)
    >>> found = measured_costs([PartMeasure(row_seconds=1e-5, costs=costs)])
    >>> round(found.units.row, 9), round(found.other, 9), found.keys
    (1e-06, 8e-06, 30.0)
    """
    total = WindowCosts()
    for part in parts:
        total = total.plus(part.costs or ())
    if not any(total):
        return MeasuredCosts(COUNTS_AND_SUMS, 0.0, None, 0.0)
    units = unit_costs(total)
    rows = max(total.rows, 1.0)
    weighted = [(part.costs.rows, part.row_seconds) for part in parts if part.costs and part.row_seconds is not None]
    other = (units.batch * total.batches + total.emitting) / rows
    if (weight := sum(count for count, _ in weighted)) > 0:
        busy = sum(count * seconds for count, seconds in weighted) / weight
        own = units.row * total.pairs + total.correcting + total.consolidating
        other = max(other, busy - own / rows)
    keys = measured_keys([part.costs for part in parts])
    each = (count / rows for count in (total.corrections, total.updates, total.lookups))
    return MeasuredCosts(units, other, keys, total.instances / len(parts), total.rows, *each)
