"""One declared value, for all keys of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.state.expiry.times import BatchTimes, Times
from dask_elastic.state.layout import unexpired_part
from dask_elastic.state.slots import Column
from dask_elastic.state.stored_values import Known, Values, to_stored
from dask_elastic.topology.state_kind import Value
from dask_elastic.vocab.arrow_arrays import numpy_of
from dask_elastic.vocab.errors import StateError, StateValueError

Load = Callable[[], Sequence[Column]]
"""Reads one name's fields, for the batch's keys, from the store."""


class ValueColumn:
    """One value per key: read from the store at first use, written back if changed.

    Parameters
    ----------
    name : str
        The declared name, for error messages.
    kind : Value
        The declared kind.
    count : int
        The number of keys.
    times : BatchTimes
        The batch's times.
    load : callable
        Reads the value's fields from the store.
    """

    def __init__(self, name: str, kind: Value, count: int, times: BatchTimes, load: Load) -> None:
        self.name = name
        self.kind = kind
        self._count = count
        self.times = times
        self._load = load
        self._current: list[Column] | None = None
        self._changed = False

    def read(self) -> tuple[Values, Known]:
        """Return the values and which keys have one; callers must not change either.

        Returns
        -------
        values : ndarray
            One element per key.
        known : ndarray of bool
            Which keys have a value.
        """
        values, known = self._fields()[:2]
        return values, known

    def _fields(self) -> list[Column]:
        if self._current is None:
            self._current = list(unexpired_part(self.kind, self._load(), self.times.expired(self.kind)))
        return self._current

    def expiry(self, position: int) -> float:
        """Return when the value of a key expires, without end if it has none; the kind has a time to live."""
        _, known, expiries = self._fields()
        return float(expiries[position]) if known[position] else -math.inf

    def write(self, values: Any, where: Known | None, none_is_null: bool = False, until: Times | None = None) -> None:
        """Set the values of all keys, or of those where `where` is true; a null deletes a key's value.

        In a column declared `object`, None is a value unless `none_is_null` is true.

        Parameters
        ----------
        values : array-like
            One element per key.
        where : ndarray of bool, optional
            The keys to set; all by default.
        none_is_null : bool, optional
            Whether None deletes a value that is declared `object`.
        until : ndarray of float64, optional
            When each value expires; by default as what the latest row of its key writes, and in event time never
            earlier than the value that it replaces.

        Raises
        ------
        StateError
            If the length does not fit.
        StateValueError
            If the type does not fit.
        """
        try:
            new, known = to_stored(values, self.kind.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise StateValueError(f"the state value {self.name!r} is declared as {self.kind.type}: {error}") from error
        if new.shape != (self._count,):
            raise StateError(
                f"state value {self.name!r}: {len(new)} values for {self._count} keys; give one per key of state.keys"
            )
        if none_is_null and new.dtype == object:
            known &= np.array([value is not None for value in new], np.bool_)
        if where is None and not isinstance(values, list | tuple | pa.Array | pa.ChunkedArray):
            # Stored after the function has returned, which may use its array for something else until then.
            new = new.copy()
        columns: list[Column] = [new, known]
        if self.kind.ttl is not None:
            columns.append(self._until() if until is None else until)
        if where is not None:
            chosen = require_mask(where, self._count, self.name)
            columns = [np.where(chosen, after, before) for after, before in zip(columns, self._fields(), strict=True)]
        self._current = columns
        self._changed = True

    def _until(self) -> Times:
        until = self.times.of_keys(self.kind)
        if self.kind.ttl_clock == "event":
            _, known, before = self._fields()
            until = np.maximum(until, np.where(known, before, -math.inf))
        return until

    def changes(self) -> Sequence[Column] | None:
        """Return the fields to write, or None if nothing has changed since the previous call."""
        changed, self._changed = self._changed, False
        return self._current if changed else None


def require_mask(where: Any, count: int, name: str, unit: str = "key of state.keys") -> Known:
    """Return a mask as an array; raise StateError if it is not `count` booleans."""
    mask = numpy_of(where) if isinstance(where, pa.Array) else np.asarray(where)
    if mask.shape != (count,) or mask.dtype != np.bool_:
        raise StateError(f"state {name!r}: where must be {count} booleans, one per {unit}")
    return mask
