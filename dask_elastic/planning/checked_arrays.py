"""Converts arguments of planning problems to arrays: copies and checks them; errors name the argument.

Notes
-----
The vocabulary is that of ALBIC, sections 3 and 4.3.1 (Tables 1 and 2): groups, bins, loads, capacities, traffic. No
erratum bears on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dask_elastic.planning.turns import no_pause
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import as_array, as_floats, check_total, is_number, is_whole

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

SLACK = 1e-9
"""Relative slack of limits and budgets: sums of floats depend on their order."""

MOST_BINS = 1 << 20
"""The most bins of a problem: every answer has numbers for each of them."""

LEAST_CAPACITY = 1e-150
"""The least capacity of a bin: ratios of capacities are finite."""


def numbers(name: str, given: ArrayLike, shape: tuple[int, ...] | None = None) -> Floats:
    """Return finite numbers of 0 or more.

    Raises
    ------
    PlanningError
        If they are no numbers, have another shape, or one is negative or not finite.

    Examples
    --------
    >>> numbers("load", [3, 1])
    array([3., 1.])
    """
    values = as_floats(name, given).copy()
    if shape is not None and values.shape != shape:
        raise PlanningError(f"{name} has shape {values.shape}: it must be {shape}.")
    wrong = np.argwhere(~(np.isfinite(values) & (values >= 0)))
    if wrong.size:
        at = tuple(int(x) for x in wrong[0])
        raise PlanningError(f"{name} at {at} is {float(values[at])!r}: give a finite number of 0 or more.")
    check_total(name, values)
    return values


def integers(name: str, given: ArrayLike, count: int) -> Ints:
    """Return a given number of integers.

    Raises
    ------
    PlanningError
        If their number or type is wrong.

    Examples
    --------
    >>> integers("operator", [0, 0, 1], 3)
    array([0, 0, 1])
    """
    values = as_array(name, given)
    if values.shape != (count,):
        raise PlanningError(f"{name} has shape {values.shape}: it must be ({count},), one for each group.")
    if values.size and values.dtype.kind not in "iu":
        raise PlanningError(f"{name} has type {values.dtype}: give integers.")
    return values.astype(np.int64)


def number_of_bins(given: int) -> int:
    """Return a number of bins.

    Raises
    ------
    PlanningError
        If it is no whole number of 1 or more.

    Examples
    --------
    >>> number_of_bins(20)
    20
    """
    if not is_whole(given) or given < 1:
        raise PlanningError(f"bins is {given!r}: give a whole number of 1 or more.")
    if given > MOST_BINS:
        raise PlanningError(f"bins is {given!r}: give {MOST_BINS} at most.")
    return int(given)


def places(name: str, given: ArrayLike, groups: int, bins: int) -> Ints:
    """Return the bin of each group, −1 for one that has none.

    Raises
    ------
    PlanningError
        If there is not one integer for each group, or one is no bin.

    Examples
    --------
    >>> places("current", [0, -1], groups=2, bins=1)
    array([ 0, -1])
    """
    values = integers(name, given, groups)
    wrong = np.flatnonzero((values < -1) | (values >= bins))
    if wrong.size:
        group = int(wrong[0])
        label = name if name == "bin" else f"{name} bin"
        raise PlanningError(f"{label} of group {group} is {int(values[group])}: give −1 to {bins - 1}.")
    return values


def capacities(given: ArrayLike, bins: int, resources: int) -> Floats:
    """Return the capacity of each bin for each resource; a single number per bin holds for all resources.

    Raises
    ------
    PlanningError
        If the shape is wrong, or a number is not above 0.

    Examples
    --------
    >>> capacities([5, 8], bins=2, resources=1).tolist()
    [[5.0], [8.0]]
    """
    values = numbers("capacity", given)
    if values.shape == (bins,):
        values = np.repeat(values[:, None], resources, axis=1)
    if values.shape != (bins, resources):
        raise PlanningError(f"capacity has shape {values.shape}: it must be ({bins},) or ({bins}, {resources}).")
    if not (values > 0).all():
        at = int(np.argwhere(values <= 0)[0, 0])
        raise PlanningError(f"capacity of bin {at} is 0: give more than 0, and name a bin to be emptied as draining.")
    if (values < LEAST_CAPACITY).any():
        at = int(np.argwhere(values < LEAST_CAPACITY)[0, 0])
        raise PlanningError(f"capacity of bin {at} is below {LEAST_CAPACITY:g}: give it in a smaller unit.")
    return values


def mask(name: str, given: ArrayLike | None, count: int) -> Mask:
    """Return a mask, from a mask or from a list of members.

    Raises
    ------
    PlanningError
        If a mask is of another length, or a number is out of range.

    Examples
    --------
    >>> mask("draining", [2], 3).tolist()
    [False, False, True]
    """
    values = np.zeros(count, dtype=np.bool_) if given is None else as_array(name, given).copy()
    if values.dtype.kind == "b":
        if values.shape != (count,):
            raise PlanningError(f"{name} has shape {values.shape}: it must be ({count},), or a list of numbers.")
        return values
    result = np.zeros(count, dtype=np.bool_)
    if values.size == 0:
        return result
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise PlanningError(
            f"{name} has shape {values.shape} and type {values.dtype}: give a mask or a list of numbers."
        )
    wrong = values[(values < 0) | (values >= count)]
    if wrong.size:
        raise PlanningError(f"{name} names {int(wrong[0])}: give 0 to {count - 1}.")
    result[values.astype(np.int64)] = True
    return result


def matrix(name: str, given: Any, groups: int, pause: Callable[[], None] = no_pause) -> Any:
    """Return a sparse matrix of groups × groups; pauses between the passes over its entries.

    Raises
    ------
    PlanningError
        If the shape is wrong, or an entry is negative or not finite.

    Examples
    --------
    >>> matrix("traffic", [[0, 3], [0, 0]], groups=2).nnz
    1
    """
    pause()
    try:
        # A complex number would lose its imaginary part without an error.
        values = sp.csr_matrix(given, copy=True).astype(np.float64, casting="same_kind")
    except (TypeError, ValueError) as error:
        raise PlanningError(f"{name} is no matrix of numbers: {error}.") from error
    if values.shape != (groups, groups):
        raise PlanningError(f"{name} has shape {values.shape}: it must be ({groups}, {groups}).")
    pause()
    numbers(name, values.data)
    pause()
    values.sum_duplicates()
    values.eliminate_zeros()
    pause()
    return values


def windows(name: str, given: ArrayLike, groups: int) -> Floats:
    """Return the loads of windows × groups.

    Raises
    ------
    PlanningError
        If the shape is wrong, there is no window, or a load is negative or not finite.

    Examples
    --------
    >>> windows("history", [[1, 2], [3, 4]], groups=2).shape
    (2, 2)
    """
    values = numbers(name, given)
    if values.ndim != 2 or values.shape[1] != groups or not len(values):
        raise PlanningError(
            f"{name} has shape {values.shape}: it must be windows × {groups}, with one window at least."
        )
    return values


def budget(name: str, given: float | None, whole: bool) -> Any:
    """Return a budget; None is no budget.

    Raises
    ------
    PlanningError
        If it is negative, no number, or not whole where it must be.

    Examples
    --------
    >>> budget("max_moves", 3.0, whole=True)
    3
    """
    if given is None:
        return None
    kind = "whole number" if whole else "number"
    if not is_number(given) or not given >= 0:
        raise PlanningError(f"{name} is {given!r}: give a {kind} of 0 or more, or None.")
    if given == float("inf"):
        return None
    if whole and given != int(given):
        raise PlanningError(f"{name} is {given!r}: give a {kind} of 0 or more, or None.")
    return int(given) if whole else float(given)
