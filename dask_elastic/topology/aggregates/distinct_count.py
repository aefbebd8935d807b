"""The number of distinct values per key: exact for few values, approximate for many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.topology.aggregates.aggregation import Aggregate, BoundAggregate, Values
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.aggregates.hyperloglog import LEAST_ERROR, MOST_ERROR, estimated, places_of, precision_of
from dask_elastic.topology.aggregates.operand import BatchFunction, BoundOperand, Operand, in_units, validity
from dask_elastic.topology.aggregates.ragged import Ragged, offsets_of
from dask_elastic.topology.aggregates.value_hash import BITS, Words, can_hash, hash_values
from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.errors import TopologyError

Ordinals = npt.NDArray[np.intp]

_BYTES_PER_HASH = 8

_MOST_GROUPS = 1 << (64 - BITS)
"""A word has room for a hash and the number of one of so many groups."""


class DistinctCount(Aggregate):
    """The number of distinct values of a column, or of a vectorised function of a batch.

    Parameters
    ----------
    of : str or callable
        A column, or a function from a batch to an array with one value per row.
    error : float
        The relative standard error of large counts, from 0.005 to 0.25.
    columns : sequence of str, optional
        The columns that the function reads; required if `of` is a function.

    Raises
    ------
    TopologyError
        If an argument is invalid.

    Notes
    -----
    Supports numbers, booleans, times, text and bytes. Nulls are ignored; −0.0 equals 0.0, and NaN is one value.

    Up to m / 8 values per key, the 48-bit hashes of the values are stored and counted exactly (the probability of a
    collision is below 10**-9). m = 2**p is the least power of two for which 1.04 / sqrt(m) is at most `error`. Beyond
    that, a HyperLogLog sketch of m bytes replaces the hashes: the error is at most `error` in two of three cases and
    nearly always at most 3 `error`. With the default of 0.03, m is 2048 and counts up to 256 are exact. Merging parts
    gives the same result as aggregating all rows at once.

    Examples
    --------
    >>> DistinctCount("plane"), DistinctCount("plane", error=0.01)
    (DistinctCount('plane'), DistinctCount('plane', error=0.01))
    >>> import dask_elastic as de
    >>> from dask_elastic.testing import run
    >>> flights = de.sources.Arrow(pa.table({"plane": ["a", "b", "a"], "delay": [3, 7, 5]}))
    >>> topology = de.Topology("delays")
    >>> stream = topology.source("flights", flights).key_by("plane")
    >>> _ = stream.compute({"delays": DistinctCount("delay")}, name="planes")
    >>> run(topology).state["planes"].sort_by("plane").to_pydict()
    {'plane': ['a', 'b'], 'delays': [2, 1]}
    """

    def __init__(self, of: str | BatchFunction, error: float = 0.03, columns: Sequence[str] | None = None) -> None:
        self._operand = Operand(of, columns)
        if isinstance(error, bool) or not isinstance(error, int | float) or not LEAST_ERROR <= error <= MOST_ERROR:
            raise TopologyError(
                f"DistinctCount({self._operand!r}): error is {error!r}; give a relative standard error from "
                f"{LEAST_ERROR} to {MOST_ERROR}"
            )
        self._error = float(error)

    @property
    def columns(self) -> tuple[str, ...]:
        """The input columns that it reads."""
        return self._operand.columns

    @property
    def calls_functions(self) -> bool:
        """Whether its values are those of a function."""
        return self._operand.is_function

    def bind(self, schema: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the schema of its input; see `Aggregate.bind`."""
        operand = self._operand.bind(schema, repr(self))
        if not can_hash(operand.type):
            raise TopologyError(
                f"{self!r}: values of type {operand.type} are not supported; use numbers, booleans, times, text or "
                "bytes, or a function that returns such values"
            )
        return _BoundDistinctCount(operand, precision_of(self._error))

    def __repr__(self) -> str:
        error = "" if self._error == 0.03 else f", error={self._error:g}"
        return f"DistinctCount({self._operand!r}{error})"


class _BoundDistinctCount(BoundAggregate):
    """The state of a key is its sorted hashes while they are few, and HyperLogLog registers after that."""

    reads_chosen = True
    type = pa.int64()

    def __init__(self, operand: BoundOperand, precision: int) -> None:
        # Equal integers and floats have different hashes.
        name = "hashes of floats" if pa.types.is_floating(operand.type) else in_units("hashes", operand.type)
        self.fields: tuple[Field, ...] = (
            Field(name, np.dtype(np.uint64), 0, ragged=True),
            Field("registers", np.dtype(np.uint8), 0, ragged=True),
        )
        self._operand = operand
        self._precision = precision
        self._size = 1 << precision
        self._most_hashes = self._size // _BYTES_PER_HASH

    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        array = self._operand.array(rows)
        ordinals = grouping.ordinals
        valid = validity(array)
        if valid is not None:
            array, ordinals = array.drop_null(), ordinals[valid]
        return self._added(current[0], current[1], ordinals, hash_values(array))

    def merge(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        hashes, registers = self._added(left[0], left[1], right[0].owners, right[0].values)
        dense = right[1].lengths > 0
        if not dense.any():
            return [hashes, registers]
        hashes, registers = self._dense(hashes, registers, dense)
        # Every key that is dense on the right is now dense on the left too, in the same order.
        rows = np.flatnonzero(dense[registers.lengths > 0])
        values = registers.values.reshape(-1, self._size).copy()
        values[rows] = np.maximum(values[rows], right[1].values.reshape(-1, self._size))
        return [hashes, Ragged(values.reshape(-1), registers.offsets)]

    def result(self, current: Sequence[Values]) -> pa.Array:
        hashes, registers = current
        counts = hashes.lengths.copy()
        dense = registers.lengths > 0
        if dense.any():
            counts[dense] = np.rint(estimated(registers.values.reshape(-1, self._size), self._precision))
        return array_of(counts)

    def _added(self, hashes: Ragged, registers: Ragged, ordinals: Ordinals, more: Words) -> list[Values]:
        """Return the state after adding hashes to the groups of their ordinals."""
        is_dense = (registers.lengths > 0)[ordinals]
        registers = self._raised(registers, ordinals[is_dense], more[is_dense])
        listed = self._listed(hashes, ordinals[~is_dense], more[~is_dense])
        if listed is not hashes:
            hashes, registers = self._dense(listed, registers, listed.lengths > self._most_hashes)
        return [hashes, registers]

    def _listed(self, hashes: Ragged, ordinals: Ordinals, more: Words) -> Ragged:
        """Return the sorted lists with new hashes inserted; the argument itself if there are none."""
        if len(hashes) > _MOST_GROUPS:
            return self._listed_in_parts(hashes, ordinals, more)
        # With the group number in the high bits, the concatenated lists are sorted as a whole.
        shift = np.uint64(BITS)
        known = (hashes.owners.astype(np.uint64) << shift) | hashes.values
        added = np.sort((ordinals.astype(np.uint64) << shift) | more)
        new = np.ones(len(added), np.bool_)
        new[1:] = added[1:] != added[:-1]
        places = np.searchsorted(known, added)
        if len(known):
            new &= known[np.minimum(places, len(known) - 1)] != added
        if not new.any():
            return hashes
        added = added[new]
        values = np.insert(hashes.values, places[new], added & np.uint64((1 << BITS) - 1))
        counts = np.bincount((added >> shift).astype(np.intp), minlength=len(hashes))
        return Ragged(values, hashes.offsets + offsets_of(counts))

    def _listed_in_parts(self, hashes: Ragged, ordinals: Ordinals, more: Words) -> Ragged:
        """Return the same as `_listed` for more groups than a word can number: an instance may close for any number."""
        order = np.argsort(ordinals, kind="stable")
        ordinals, more = ordinals.take(order), more.take(order)
        parts: list[Ragged] = []
        for first in range(0, len(hashes), _MOST_GROUPS):
            groups = np.arange(first, min(first + _MOST_GROUPS, len(hashes)))
            start, stop = np.searchsorted(ordinals, [first, first + len(groups)])
            parts.append(self._listed(hashes.take(groups), ordinals[start:stop] - first, more[start:stop]))
        return Ragged.of_lengths(
            np.concatenate([part.values for part in parts]), np.concatenate([part.lengths for part in parts])
        )

    def _raised(self, registers: Ragged, ordinals: Ordinals, more: Words) -> Ragged:
        """Return the registers after adding hashes of dense groups."""
        places, ranks = places_of(more, self._precision)
        places += registers.offsets[ordinals]
        higher = ranks > registers.values[places]
        if not higher.any():
            return registers
        values = registers.values.copy()
        np.maximum.at(values, places[higher], ranks[higher])
        return Ragged(values, registers.offsets)

    def _dense(self, hashes: Ragged, registers: Ragged, wanted: npt.NDArray[np.bool_]) -> tuple[Ragged, Ragged]:
        """Return the state with hashes converted to registers in the `wanted` groups that have none yet."""
        fresh = wanted & (registers.lengths == 0)
        if not fresh.any():
            return hashes, registers
        blank = Ragged.of_lengths(np.zeros(self._size * int(fresh.sum()), np.uint8), np.where(fresh, self._size, 0))
        moving = fresh[hashes.owners]
        raised = self._raised(registers.joined(blank), hashes.owners[moving], hashes.values[moving])
        return hashes.filtered(~moving), raised
