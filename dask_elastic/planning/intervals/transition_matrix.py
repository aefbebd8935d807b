"""The migration transition matrix: the probability of each number of nodes after each other.

Goal
    The probabilities that planning ahead needs, from the node counts of a month; and a check of given ones.
Heuristic
    None: relative frequencies.
Not done
    Dependence on the time of day, or on more than the present count.

Notes
-----
State migration (Ding et al.), sections 5.2 (Table 4) and 6; ERRATA has no entry for the matrix itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from dask_elastic.planning.intervals.load_limit import checked_nodes
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import is_number

_ROUNDING = 1e-9


def transition_matrix(node_counts: ArrayLike, drop_self: bool = True) -> dict[int, dict[int, float]]:
    """Return the relative frequency of each number of nodes after each other.

    Parameters
    ----------
    node_counts : array of int
        The nodes of each interval of time, in order.
    drop_self : bool
        Leave out intervals that need as many nodes as the one before: nothing migrates then.

    Returns
    -------
    dict of dict
        For each number of nodes the probabilities of the next number. Rows sum to one. A number without a successor,
        such as the last one may be, has no row.

    Raises
    ------
    PlanningError
        If a count is no whole number of 1 or more.

    Notes
    -----
    State migration, section 6: no migration occurs between intervals of equal counts. Table 4 has them.

    Examples
    --------
    >>> transition_matrix([2, 2, 3, 4, 3])
    {2: {3: 1.0}, 3: {4: 1.0}, 4: {3: 1.0}}
    >>> transition_matrix([2, 2, 3, 4, 3], drop_self=False)
    {2: {2: 0.5, 3: 0.5}, 3: {4: 1.0}, 4: {3: 1.0}}
    """
    try:
        given = np.array(node_counts)
    except ValueError as error:
        raise PlanningError(f"node_counts is no array: {error}. Give integers, in order.") from error
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise PlanningError(f"node_counts has shape {given.shape} and type {given.dtype}: give integers, in order.")
    times: dict[int, dict[int, int]] = {}
    for before, after in pairwise(given.tolist()):
        if before != after or not drop_self:
            row = times.setdefault(checked_nodes(before), {})
            row[checked_nodes(after)] = row.get(after, 0) + 1
    return {
        before: {after: row[after] / sum(row.values()) for after in sorted(row)}
        for before, row in sorted(times.items())
    }


def checked_matrix(matrix: Mapping[int, Mapping[int, float]]) -> dict[int, dict[int, float]]:
    """Return the matrix without zeros, and with a row for each number of nodes that occurs.

    Parameters
    ----------
    matrix : mapping of mappings
        For each number of nodes the probabilities of the next number.

    Returns
    -------
    dict of dict
        In ascending order. A number of nodes without a row is followed by itself.

    Raises
    ------
    PlanningError
        If a row does not sum to one, or a number of nodes or a probability is out of range.

    Examples
    --------
    >>> checked_matrix({2: {3: 1.0, 4: 0.0}})
    {2: {3: 1.0}, 3: {3: 1.0}}
    >>> checked_matrix({2: {3: 0.5, 4: 0.4}})
    Traceback (most recent call last):
    ...
    dask_elastic.vocab.errors.PlanningError: row 2 of the matrix sums to 0.9: ...
    """
    if not isinstance(matrix, Mapping) or not matrix:
        raise PlanningError(
            f"matrix is {matrix!r}: give a row for one number of nodes at least, such as {{2: {{3: 1.0}}}}."
        )
    rows = {}
    for nodes, row in matrix.items():
        if not isinstance(row, Mapping):
            raise PlanningError(
                f"row {nodes!r} of the matrix is {row!r}: give the probability of each number of nodes."
            )
        for after, share in row.items():
            if not (is_number(share) and math.isfinite(share) and share >= 0):
                raise PlanningError(f"the probability of {after!r} nodes after {nodes!r} is {share!r}: give 0 to 1.")
        total = math.fsum(row.values())
        if abs(total - 1.0) > _ROUNDING:
            raise PlanningError(f"row {nodes!r} of the matrix sums to {total:.9g}: the probabilities must sum to one.")
        rows[checked_nodes(nodes)] = {
            checked_nodes(after): float(row[after]) for after in _ascending(row) if row[after]
        }
    occurring = set(rows).union(*rows.values())
    return {nodes: rows.get(nodes, {nodes: 1.0}) for nodes in sorted(occurring)}


def _ascending(numbers: Iterable[int]) -> list[int]:
    return sorted(numbers)
