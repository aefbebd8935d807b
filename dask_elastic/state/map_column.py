"""One named map of the keys in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from dask_elastic.state.layout import unexpired_part
from dask_elastic.state.list_column import require_known, stored_elements
from dask_elastic.state.slots import Column
from dask_elastic.state.stored_values import Known, Values, dtype_of, filled, private, to_arrow, to_python
from dask_elastic.state.value_column import Load, require_mask
from dask_elastic.topology.aggregates.ragged import Ragged
from dask_elastic.topology.state_kind import Map
from dask_elastic.vocab.errors import StateError

Ordinals = npt.NDArray[np.intp]
_UNSET = object()


class MapColumn:
    """A map per key of a batch, for vectorised logic; made by `StateView.map`.

    Parameters
    ----------
    name : str
        Its name, for messages.
    kind : Map
        What it is.
    ordinals : ndarray of intp
        For each row of the batch the number of its key.
    count : int
        How many keys there are.
    now : float
        The batch's time, seconds since the epoch.
    load : callable
        Reads its fields.

    Notes
    -----
    Each row asks for, or puts, one entry of its own key's map. A pair of key and map's key is found by search among the
    sorted pairs of all keys in the batch: the cost is that of the maps that the batch touches, whole. Where there is a
    time to live, each entry has its own: it ends so long after it was last put.
    """

    def __init__(self, name: str, kind: Map, ordinals: Ordinals, count: int, now: float, load: Load) -> None:
        self.name = name
        self.kind = kind
        self._ordinals = ordinals
        self._count = count
        self._now = now
        self._load = load
        self._current: list[Ragged] | None = None
        self._changed = False

    def _parts(self) -> list[Ragged]:
        """Return the values, the map's keys and, where there is a time to live, the ends."""
        if self._current is None:
            self._current = list(unexpired_part(self.kind, self._load(), self._now))
        return self._current

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """How many entries each key has."""
        return self._parts()[0].lengths

    def entries(self) -> pa.MapArray:
        """Return the maps, one per key of `state.keys`; values declared `object` are pickled."""
        values, keys = self._parts()[:2]
        offsets = pa.array(values.offsets.astype(np.int32))
        return pa.MapArray.from_arrays(
            offsets, to_arrow(keys.values, self.kind.key), to_arrow(values.values, self.kind.type)
        )

    def contains(self, keys: Any) -> Known:
        """Return for each row whether its key's map has an entry of the row's map key."""
        found: Known = self._find(*self._asked(keys, None)) >= 0
        return found

    def get(self, keys: Any, default: object = _UNSET) -> Values:
        """Return an entry for each row.

        Parameters
        ----------
        keys : array-like
            A map's key for each row of the batch.
        default : object, optional
            What rows get whose entry is not there; without it zero, False, NaT or None.

        Returns
        -------
        ndarray
            One element per row, the caller's own.
        """
        found = self._find(*self._asked(keys, None))
        missing = found < 0
        stored = self._parts()[0].values
        values = np.zeros(len(found), stored.dtype) if stored.dtype != object else np.full(len(found), None, object)
        if stored.dtype.kind in "Mm":
            values = np.full(len(found), "NaT", stored.dtype)
        values[~missing] = stored[found[~missing]]
        values = private(values)
        return values if default is _UNSET else filled(values, missing, default)

    def put(self, keys: Any, values: Any, where: Any = None) -> None:
        """Put one entry for each row; of several rows with one entry, the last one counts.

        Parameters
        ----------
        keys, values : array-like
            A map's key and a value for each row of the batch, no nulls where they are put.
        where : array of bool, optional
            Which rows to put; all by default.

        Raises
        ------
        StateError
            If lengths or types do not fit, or something is null.
        """
        mask = None if where is None else require_mask(where, len(self._ordinals), self.name, "row")
        asked, ordinals = self._asked(keys, mask)
        stored, known = stored_elements(values, self.kind.type, self.name)
        if len(stored) != len(self._ordinals):
            raise StateError(
                f"state map {self.name!r}: {len(stored)} values came for {len(self._ordinals)} rows; give one per row"
            )
        if mask is not None:
            stored, known = stored[mask], known[mask]
        require_known(known, f"state map {self.name!r}")
        self._put(asked, ordinals, stored)

    def _put(self, asked: Values, ordinals: Ordinals, stored: Values) -> None:
        pairs, entries = self._pairs(asked, ordinals)
        found = _positions(entries, pairs)
        old = found >= 0
        # Of equal pairs NumPy keeps what is written last; they come in at the place of the first one.
        _, first, group = np.unique(pairs[~old], return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.intp)
        rank[np.argsort(first)] = np.arange(len(first))
        at = np.sort(first)
        new = np.empty(len(first), stored.dtype)
        new[rank[group]] = stored[~old]
        fresh = [new, asked[~old][at]]
        changed = [self._parts()[0].values.copy()]
        changed[0][found[old]] = stored[old]
        parts = [Ragged(changed[0], self._parts()[0].offsets), *self._parts()[1:]]
        if self.kind.ttl is not None:
            ends = parts[2].values.copy()
            ends[found[old]] = self._now + self.kind.ttl
            parts[2] = Ragged(ends, parts[2].offsets)
            fresh.append(np.full(len(first), self._now + self.kind.ttl))
        owners = ordinals[~old][at]
        self._change(
            [part.joined(Ragged.grouped(more, owners, self._count)) for part, more in zip(parts, fresh, strict=True)]
        )

    def remove(self, keys: Any, where: Any = None) -> None:
        """Take an entry away for each row, or each one where `where` is true; one that is not there is no error."""
        mask = None if where is None else require_mask(where, len(self._ordinals), self.name, "row")
        found = self._find(*self._asked(keys, mask))
        kept = np.ones(len(self._parts()[0].values), np.bool_)
        kept[found[found >= 0]] = False
        if not kept.all():
            self._change([part.filtered(kept) for part in self._parts()])

    def clear(self, where: Any = None) -> None:
        """Empty the maps of all keys, or of those where `where` is true."""
        mask = np.ones(self._count, np.bool_) if where is None else require_mask(where, self._count, self.name)
        self._change([part.filtered(~mask[part.owners]) for part in self._parts()])

    def replace(self, parts: Sequence[Ragged], where: Known) -> None:
        """Replace stored values, map's keys and, where there is a time to live, ends of some keys."""
        self._change([old.replaced(where, new) for old, new in zip(self._parts(), parts, strict=True)])

    def python(self, position: int) -> tuple[dict[Any, Any], dict[Any, float]]:
        """Return one key's map as Python's, and when each entry ends; no ends where there is no time to live."""
        values, keys, *ends = self._parts()
        start, stop = int(values.offsets[position]), int(values.offsets[position + 1])
        listed = to_python(keys.values[start:stop], self.kind.key)
        entries = dict(zip(listed, to_python(values.values[start:stop], self.kind.type), strict=True))
        return entries, dict(zip(listed, ends[0].values[start:stop].tolist(), strict=True)) if ends else {}

    def _asked(self, keys: Any, mask: Known | None) -> tuple[Values, Ordinals]:
        """Return the rows' map keys as they are stored, and the rows' ordinals; only rows that are chosen."""
        stored, known = stored_elements(keys, self.kind.key, self.name)
        if len(stored) != len(self._ordinals):
            raise StateError(
                f"state map {self.name!r}: {len(stored)} keys came for {len(self._ordinals)} rows; give one per row"
            )
        ordinals = self._ordinals
        if mask is not None:
            stored, known, ordinals = stored[mask], known[mask], ordinals[mask]
        require_known(known, f"state map {self.name!r}: a map's key in")
        return stored.astype(dtype_of(self.kind.key), copy=False), ordinals

    def _pairs(self, asked: Values, ordinals: Ordinals) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return a number for each row's pair of key and map's key, and for each entry's."""
        keys = self._parts()[1]
        codes = pd.factorize(np.concatenate([keys.values, asked]))[0].astype(np.int64)
        distinct = int(codes.max(initial=0)) + 1
        entries = keys.owners * distinct + codes[: len(keys.values)]
        return ordinals * distinct + codes[len(keys.values) :], entries

    def _find(self, asked: Values, ordinals: Ordinals) -> Ordinals:
        pairs, entries = self._pairs(asked, ordinals)
        return _positions(entries, pairs)

    def _change(self, parts: list[Ragged]) -> None:
        self._current = parts
        self._changed = True

    def changes(self) -> Sequence[Column] | None:
        """Return the fields to write, None if nothing has changed since it was last asked."""
        changed, self._changed = self._changed, False
        return self._current if changed else None


def _positions(entries: npt.NDArray[np.int64], pairs: npt.NDArray[np.int64]) -> Ordinals:
    """Return where each pair is among the entries, -1 where it is not."""
    if not len(entries):
        return np.full(len(pairs), -1, np.intp)
    order = np.argsort(entries, kind="stable")
    ordered = entries[order]
    places = np.minimum(np.searchsorted(ordered, pairs), len(entries) - 1)
    return np.where(ordered[places] == pairs, order[places], -1)
