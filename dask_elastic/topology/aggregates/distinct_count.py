"""How many different values a key has: exactly while they are few, approximately when they are many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.topology.aggregates.aggregation import Aggregate, BoundAggregate, Values
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.aggregates.hyperloglog import LEAST_ERROR, MOST_ERROR, estimated, places_of, precision_of
from dask_elastic.topology.aggregates.operand import BatchFunction, BoundOperand, Operand, validity
from dask_elastic.topology.aggregates.ragged import Ragged, offsets_of
from dask_elastic.topology.aggregates.value_hash import BITS, Words, can_hash, hash_values
from dask_elastic.vocab.errors import TopologyError

Ordinals = npt.NDArray[np.intp]

_BYTES_PER_HASH = 8


class DistinctCount(Aggregate):
    """How many different values a column, or a vectorised function of a batch, has.

    Parameters
    ----------
    of : str or callable
        A column, or a function from a batch to an array with one value per row.
    error : float
        The relative standard error of large counts, 0.005 to 0.25.
    columns : sequence of str, optional
        What the function reads.

    Notes
    -----
    Nulls are left out; −0.0 is 0.0, and NaN is one value. A key with m = 2**p registers, p the least for which
    1.04 / sqrt(m) is at most `error`, has its values' hashes of 48 bits kept as they are up to m / 8 of them, and is
    counted exactly so far (two of m / 8 values have one hash with a chance below 10**-9); beyond, HyperLogLog takes
    their place, m bytes: the error is at most `error` in two cases of three and at most 3 `error` nearly always. With
    0.03, the default, m is 2048 and counts up to 256 are exact. Parts merge to what the whole would have been.
    Numbers, booleans, times, text and bytes.

    Examples
    --------
    >>> DistinctCount("plane"), DistinctCount("plane", error=0.01)
    (DistinctCount('plane'), DistinctCount('plane', error=0.01))
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
        """The input columns it reads."""
        return self._operand.columns

    def bind(self, schema: pa.Schema) -> BoundAggregate:
        """Fit the aggregate to its input; see `Aggregate.bind`."""
        operand = self._operand.bind(schema, repr(self))
        if not can_hash(operand.type):
            raise TopologyError(
                f"{self!r}: values of type {operand.type} are not told apart here; use numbers, booleans, times, text "
                "or bytes, or take a part of them by a function"
            )
        return _BoundDistinctCount(operand, precision_of(self._error))

    def __repr__(self) -> str:
        error = "" if self._error == 0.03 else f", error={self._error:g}"
        return f"DistinctCount({self._operand!r}{error})"


class _BoundDistinctCount(BoundAggregate):
    """State of a key: its hashes in rising order while they are few, and no registers; then registers alone."""

    fields = (
        Field("hashes", np.dtype(np.uint64), 0, ragged=True),
        Field("registers", np.dtype(np.uint8), 0, ragged=True),
    )
    type = pa.int64()

    def __init__(self, operand: BoundOperand, precision: int) -> None:
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
        # All that are dense on the right are dense on the left by now, and these are in the same order.
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
        return pa.array(counts, pa.int64())

    def _added(self, hashes: Ragged, registers: Ragged, ordinals: Ordinals, more: Words) -> list[Values]:
        """Return the state after some more hashes, each of the group of its ordinal."""
        is_dense = (registers.lengths > 0)[ordinals]
        registers = self._raised(registers, ordinals[is_dense], more[is_dense])
        listed = self._listed(hashes, ordinals[~is_dense], more[~is_dense])
        if listed is not hashes:
            hashes, registers = self._dense(listed, registers, listed.lengths > self._most_hashes)
        return [hashes, registers]

    def _listed(self, hashes: Ragged, ordinals: Ordinals, more: Words) -> Ragged:
        """Return the lists with the hashes that are new to them, still in order."""
        # A group's number before its hashes: lists in the order of their groups are in order all together, too.
        shift = np.uint64(BITS)
        known = (hashes.owners.astype(np.uint64) << shift) | hashes.values
        asked = np.sort((ordinals.astype(np.uint64) << shift) | more)
        new = np.ones(len(asked), np.bool_)
        new[1:] = asked[1:] != asked[:-1]
        places = np.searchsorted(known, asked)
        if len(known):
            new &= known[np.minimum(places, len(known) - 1)] != asked
        if not new.any():
            return hashes
        asked = asked[new]
        values = np.insert(hashes.values, places[new], asked & np.uint64((1 << BITS) - 1))
        added = np.bincount((asked >> shift).astype(np.intp), minlength=len(hashes))
        return Ragged(values, hashes.offsets + offsets_of(added))

    def _raised(self, registers: Ragged, ordinals: Ordinals, more: Words) -> Ragged:
        """Return the registers after hashes of groups that have some."""
        places, ranks = places_of(more, self._precision)
        places += registers.offsets[ordinals]
        higher = ranks > registers.values[places]
        if not higher.any():
            return registers
        values = registers.values.copy()
        np.maximum.at(values, places[higher], ranks[higher])
        return Ragged(values, registers.offsets)

    def _dense(self, hashes: Ragged, registers: Ragged, wanted: npt.NDArray[np.bool_]) -> tuple[Ragged, Ragged]:
        """Return the state with registers in place of hashes where they are wanted and not there yet."""
        fresh = wanted & (registers.lengths == 0)
        if not fresh.any():
            return hashes, registers
        blank = Ragged.of_lengths(np.zeros(self._size * int(fresh.sum()), np.uint8), np.where(fresh, self._size, 0))
        moving = fresh[hashes.owners]
        raised = self._raised(registers.joined(blank), hashes.owners[moving], hashes.values[moving])
        return hashes.filtered(~moving), raised
