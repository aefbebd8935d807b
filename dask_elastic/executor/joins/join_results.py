"""The results of a join as batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.executor.joins.sorted_rows import Times
from dask_elastic.state.index import Slots
from dask_elastic.state.joins.layout import nulls
from dask_elastic.topology.joins.joining import LEFT, TIME, Joining, shared_name
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.batch import MAX_BATCH_ROWS


class JoinResults:
    """Makes batches of pairs, and of rows without a match.

    Parameters
    ----------
    joining : Joining
        The join.
    """

    def __init__(self, joining: Joining):
        self._joining = joining
        self._kinds = [[side.schema.field(name).type for name in side.places] for side in joining.sides]
        self._shared = [[shared_name(place) for place in side.places.values()] for side in joining.sides]

    def pairs(self, rows: pa.RecordBatch, side: int, chosen: Slots, others: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return pairs of rows that have arrived and buffered ones.

        Parameters
        ----------
        rows : RecordBatch
            Rows of a side, in the schema of the join's input.
        side : int
            Their side.
        chosen : ndarray of intp
            The row of each pair.
        others : sequence of Array
            The columns of the other side, for each pair.

        Returns
        -------
        RecordBatch
            One row per pair.
        """
        at = array_of(chosen)
        names = [*self._joining.left.keys, *self._shared[side], *([TIME] if self._joining.window else [])]
        taken = rows.select(list(dict.fromkeys(names))).take(at)
        own = [taken.column(name) for name in self._shared[side]]
        begins = taken.column(TIME) if self._joining.window else None
        left, right = (own, others) if side == LEFT else (others, own)
        return self._batch([taken.column(key) for key in self._joining.left.keys], left, right, begins)

    def unmatched(self, rows: pa.RecordBatch, side: int) -> pa.RecordBatch:
        """Return rows that have arrived, in the schema of the join's input, without a match."""
        own = [rows.column(name) for name in self._shared[side]]
        keys = [rows.column(key) for key in self._joining.left.keys]
        return self.alone(keys, side, own, rows.column(TIME))

    def alone(self, keys: Iterable[pa.Array], side: int, own: Sequence[pa.Array], times: pa.Array) -> pa.RecordBatch:
        """Return rows without a match.

        Parameters
        ----------
        keys : iterable of Array
            Their keys.
        side : int
            Their side.
        own : sequence of Array
            Their columns that are no keys.
        times : Array
            Their times in microseconds.

        Returns
        -------
        RecordBatch
            One row each, with nulls in the columns of the other side.
        """
        other = nulls(self._kinds[1 - side], len(times))
        left, right = (own, other) if side == LEFT else (other, own)
        return self._batch(keys, left, right, times)

    def both(self, keys: Iterable[pa.Array], left: Sequence[pa.Array], right: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return rows of both sides, which may be null on the right."""
        return self._batch(keys, left, right, None)

    def _batch(
        self, keys: Iterable[pa.Array], left: Sequence[pa.Array], right: Sequence[pa.Array], begins: pa.Array | None
    ) -> pa.RecordBatch:
        joining = self._joining
        found = dict(zip(joining.left.keys, keys, strict=True)) | dict(zip(joining.left.places, left, strict=True))
        columns = [*(found[name] for name in joining.left.schema.names), *right]
        if joining.window is not None:
            assert begins is not None
            columns += [self._instants(begins, 0), self._instants(begins, joining.window.length)]
        return pa.RecordBatch.from_arrays(columns, schema=joining.output)

    def _instants(self, begins: pa.Array, later: int) -> pa.Array:
        times: Times = numpy_of(begins.fill_null(0)) + later
        mask = numpy_of(begins.is_null()) if begins.null_count else None
        return pa.array(times.view("M8[us]"), self._joining.output.types[-1], mask=mask)


def in_parts(slots: Slots) -> list[Slots]:
    """Cut slots into parts of as many rows as a batch may have; none if there are no slots.

    Parameters
    ----------
    slots : ndarray of intp
        The slots, or positions.

    Returns
    -------
    list of ndarray of intp
        The parts, in order.

    Examples
    --------
    >>> [len(part) for part in in_parts(np.arange(70_000))], in_parts(np.arange(0))
    ([65536, 4464], [])
    """
    return [slots[start : start + MAX_BATCH_ROWS] for start in range(0, len(slots), MAX_BATCH_ROWS)]


def in_order(times: Times, numbers: Times, shards: npt.NDArray[np.integer]) -> Slots:
    """Return the order in which rows without a match are emitted: by time, then as they arrived in their shard.

    Parameters
    ----------
    times, numbers : ndarray of int64
        Their times, and numbers within their shards.
    shards : ndarray of int
        Their shards.

    Returns
    -------
    ndarray of intp
        Positions of the rows.

    Examples
    --------
    >>> in_order(np.array([5, 3, 3]), np.array([0, 1, 0]), np.array([0, 2, 2])).tolist()
    [2, 1, 0]
    """
    order = np.argsort(times)
    return np.lexsort((shards, numbers, times)) if has_ties(times[order]) else order


def has_ties(ordered: Times) -> bool:
    """Return whether sorted numbers contain equal ones.

    Parameters
    ----------
    ordered : ndarray of int64
        The numbers, sorted.

    Returns
    -------
    bool
        Whether two are equal.

    Examples
    --------
    >>> has_ties(np.array([1, 2, 2])), has_ties(np.array([1, 2]))
    (True, False)
    """
    return bool((ordered[1:] == ordered[:-1]).any())
