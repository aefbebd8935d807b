"""One declared map, for all keys of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.expiry.times import BatchTimes, Times
from dask_elastic.state.layout import unexpired_part
from dask_elastic.state.list_column import require_known, stored_elements
from dask_elastic.state.slots import Column
from dask_elastic.state.stored_values import Known, Values, dtype_of, filled, private, to_arrow, to_python
from dask_elastic.state.value_column import Load, require_mask
from dask_elastic.topology.aggregates.ragged import Ragged
from dask_elastic.topology.state_kind import Map
from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.errors import StateError

Ordinals = npt.NDArray[np.intp]
_UNSET = object()


class MapColumn:
    """The maps of a batch's keys, for vectorised logic; made by `StateView.map`.

    Parameters
    ----------
    name : str
        The declared name, for error messages.
    kind : Map
        The declared kind.
    ordinals : ndarray of intp
        For each row of the batch, the position of its key in `state.keys`.
    count : int
        The number of keys.
    times : BatchTimes
        The batch's times.
    load : callable
        Reads the map's fields from the store.

    Notes
    -----
    Each row reads or writes one entry in the map of its own key. Entries are looked up by sorting all entries of the
    batch's maps, so a call costs time proportional to the whole size of these maps. With a time to live, each entry
    expires that long after it was last put.

    Examples
    --------
    >>> import dask_elastic as de
    >>> from dask_elastic.testing import run
    >>> def remember(batch, state):
    ...     state.map("last").put(batch["place"], batch["value"])
    >>> topology = de.Topology("places")
    >>> table = pa.table({"key": ["a", "a", "a"], "place": ["x", "y", "x"], "value": [1, 2, 3]})
    >>> rows = topology.source("rows", de.sources.Arrow(table)).key_by("key")
    >>> stream = rows.compute(remember, state={"last": de.Map(pa.string(), pa.int64())}, name="remember")
    >>> run(topology).state["remember"].to_pylist()
    [{'key': 'a', 'last': [('x', 3), ('y', 2)]}]
    """

    def __init__(self, name: str, kind: Map, ordinals: Ordinals, count: int, times: BatchTimes, load: Load) -> None:
        self.name = name
        self.kind = kind
        self._ordinals = ordinals
        self._count = count
        self.times = times
        self._load = load
        self._current: list[Ragged] | None = None
        self._changed = False

    def _parts(self) -> list[Ragged]:
        """Return the values, the map keys and, with a time to live, the expiry times."""
        if self._current is None:
            self._current = list(unexpired_part(self.kind, self._load(), self.times.expired(self.kind)))
        return self._current

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of entries of each key's map.

        Returns
        -------
        ndarray of int64
            One number per key of `state.keys`.

        Examples
        --------
        >>> def count_places(batch, state):
        ...     return state.keys.append_column("places", pa.array(state.map("last").lengths))
        """
        return self._parts()[0].lengths

    def entries(self) -> pa.MapArray:
        """Return the whole maps.

        Returns
        -------
        MapArray
            One map per key of `state.keys`; values declared `object` are pickled.

        Examples
        --------
        >>> def all_places(batch, state):
        ...     return state.keys.append_column("last", state.map("last").entries())
        """
        values, keys = self._parts()[:2]
        offsets = array_of(values.offsets.astype(np.int32))
        return pa.MapArray.from_arrays(
            offsets, to_arrow(keys.values, self.kind.key), to_arrow(values.values, self.kind.type)
        )

    def contains(self, keys: Any) -> Known:
        """Return for each row whether the map of its key has an entry under the row's map key.

        Parameters
        ----------
        keys : array-like
            One map key per row of the batch.

        Returns
        -------
        ndarray of bool
            One element per row.

        Raises
        ------
        StateError
            If the length does not fit.
        StateValueError
            If the type does not fit, or a map key is null.

        Examples
        --------
        >>> def new_places(batch, state):
        ...     return batch.filter(pa.array(~state.map("last").contains(batch["place"])))
        """
        found: Known = self._find(*self._wanted(keys, None)) >= 0
        return found

    def get(self, keys: Any, default: object = _UNSET) -> Values:
        """Return one entry's value for each row.

        Parameters
        ----------
        keys : array-like
            One map key per row of the batch.
        default : object, optional
            The value for rows whose entry does not exist; if not given, zero, False, NaT or None by type.

        Returns
        -------
        ndarray
            One element per row; a copy, which the caller may change.

        Raises
        ------
        StateError
            If the length does not fit.
        StateValueError
            If the type does not fit, or a map key is null.

        Examples
        --------
        >>> def changes(batch, state):
        ...     before = state.map("last").get(batch["place"], default=0)
        ...     return batch.append_column("change", pa.array(batch["value"].to_numpy() - before))
        """
        found = self._find(*self._wanted(keys, None))
        missing = found < 0
        stored = self._parts()[0].values
        values = np.zeros(len(found), stored.dtype) if stored.dtype != object else np.full(len(found), None, object)
        if stored.dtype.kind in "Mm":
            values = np.full(len(found), "NaT", stored.dtype)
        values[~missing] = stored[found[~missing]]
        values = private(values)
        return values if default is _UNSET else filled(values, missing, default)

    def put(self, keys: Any, values: Any, where: Any = None) -> None:
        """Put one entry per row; if several rows put the same entry, the last row wins.

        Parameters
        ----------
        keys, values : array-like
            One map key and one value per row of the batch; those that are put must not be null.
        where : array of bool, optional
            The rows to put; all by default.

        Raises
        ------
        StateError
            If lengths do not fit.
        StateValueError
            If types do not fit, or a map key or value that is put is null.

        Examples
        --------
        >>> def remember(batch, state):
        ...     state.map("last").put(batch["place"], batch["value"])
        """
        mask = None if where is None else require_mask(where, len(self._ordinals), self.name, "row")
        wanted, ordinals = self._wanted(keys, mask)
        stored, known = stored_elements(values, self.kind.type, self.name)
        if len(stored) != len(self._ordinals):
            raise StateError(
                f"state map {self.name!r}: {len(stored)} values for {len(self._ordinals)} rows; give one per row"
            )
        until = None if self.kind.ttl is None else self.times.of_rows(self.kind)
        if mask is not None:
            stored, known = stored[mask], known[mask]
            until = None if until is None else until[mask]
        require_known(known, f"state map {self.name!r}")
        self._put(wanted, ordinals, stored, until)

    def _put(self, wanted: Values, ordinals: Ordinals, stored: Values, until: Times | None) -> None:
        pairs, entries = self._pairs(wanted, ordinals)
        found = _positions(entries, pairs)
        old = found >= 0
        # Equal new pairs become one entry: at the place of the first, with the value of the last (NumPy's last write).
        _, first, group = np.unique(pairs[~old], return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.intp)
        rank[np.argsort(first)] = np.arange(len(first))
        at = np.sort(first)
        new = np.empty(len(first), stored.dtype)
        new[rank[group]] = stored[~old]
        fresh = [new, wanted[~old][at]]
        changed = [self._parts()[0].values.copy()]
        changed[0][found[old]] = stored[old]
        parts = [Ragged(changed[0], self._parts()[0].offsets), *self._parts()[1:]]
        if until is not None:
            expiries, fresh_expiries = parts[2].values.copy(), np.full(len(first), -np.inf)
            if self.kind.ttl_clock == "processing":
                expiries[found[old]] = until[old]
            else:
                # An older row does not shorten the life of an entry.
                np.maximum.at(expiries, found[old], until[old])
            np.maximum.at(fresh_expiries, rank[group], until[~old])
            parts[2] = Ragged(expiries, parts[2].offsets)
            fresh.append(fresh_expiries)
        owners = ordinals[~old][at]
        self._change(
            [part.joined(Ragged.grouped(more, owners, self._count)) for part, more in zip(parts, fresh, strict=True)]
        )

    def remove(self, keys: Any, where: Any = None) -> None:
        """Remove one entry per row; an entry that does not exist is no error.

        Parameters
        ----------
        keys : array-like
            One map key per row of the batch.
        where : array of bool, optional
            The rows whose entries are removed; all by default.

        Raises
        ------
        StateError
            If the length does not fit.
        StateValueError
            If the type does not fit, or a map key is null.

        Examples
        --------
        >>> def forget(batch, state):
        ...     state.map("last").remove(batch["place"])
        """
        mask = None if where is None else require_mask(where, len(self._ordinals), self.name, "row")
        found = self._find(*self._wanted(keys, mask))
        kept = np.ones(len(self._parts()[0].values), np.bool_)
        kept[found[found >= 0]] = False
        if not kept.all():
            self._change([part.filtered(kept) for part in self._parts()])

    def clear(self, where: Any = None) -> None:
        """Empty maps.

        Parameters
        ----------
        where : array of bool, optional
            The keys of `state.keys` whose maps are emptied; all by default.

        Raises
        ------
        StateError
            If `where` is not one boolean per key.

        Examples
        --------
        >>> def restart(batch, state):
        ...     state.map("last").clear(where=state.map("last").lengths > 100)
        """
        mask = np.ones(self._count, np.bool_) if where is None else require_mask(where, self._count, self.name)
        self._change([part.filtered(~mask[part.owners]) for part in self._parts()])

    def replace(self, parts: Sequence[Ragged], where: Known) -> None:
        """Replace maps of some keys, given in stored form: values, map keys and, with a time to live, expiry times."""
        self._change([old.replaced(where, new) for old, new in zip(self._parts(), parts, strict=True)])

    def python(self, position: int) -> tuple[dict[Any, Any], dict[Any, float]]:
        """Return one key's map as a dict, and the expiry time by map key (empty without a time to live)."""
        values, keys, *expiries = self._parts()
        start, stop = int(values.offsets[position]), int(values.offsets[position + 1])
        listed = to_python(keys.values[start:stop], self.kind.key)
        entries = dict(zip(listed, to_python(values.values[start:stop], self.kind.type), strict=True))
        return entries, dict(zip(listed, expiries[0].values[start:stop].tolist(), strict=True)) if expiries else {}

    def _wanted(self, keys: Any, mask: Known | None) -> tuple[Values, Ordinals]:
        """Return the chosen rows' map keys in stored form, and these rows' ordinals."""
        stored, known = stored_elements(keys, self.kind.key, self.name)
        if len(stored) != len(self._ordinals):
            raise StateError(
                f"state map {self.name!r}: {len(stored)} keys for {len(self._ordinals)} rows; give one per row"
            )
        ordinals = self._ordinals
        if mask is not None:
            stored, known, ordinals = stored[mask], known[mask], ordinals[mask]
        require_known(known, f"state map {self.name!r}: map keys")
        return stored.astype(dtype_of(self.kind.key), copy=False), ordinals

    def _pairs(self, wanted: Values, ordinals: Ordinals) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return a number per row and one per entry that identifies its pair of key and map key."""
        import pandas as pd

        keys = self._parts()[1]
        codes = pd.factorize(np.concatenate([keys.values, wanted]))[0].astype(np.int64)
        distinct = int(codes.max(initial=0)) + 1
        entries = keys.owners * distinct + codes[: len(keys.values)]
        return ordinals * distinct + codes[len(keys.values) :], entries

    def _find(self, wanted: Values, ordinals: Ordinals) -> Ordinals:
        pairs, entries = self._pairs(wanted, ordinals)
        return _positions(entries, pairs)

    def _change(self, parts: list[Ragged]) -> None:
        self._current = parts
        self._changed = True

    def changes(self) -> Sequence[Column] | None:
        """Return the fields to write, or None if nothing has changed since the previous call."""
        changed, self._changed = self._changed, False
        return self._current if changed else None


def _positions(entries: npt.NDArray[np.int64], pairs: npt.NDArray[np.int64]) -> Ordinals:
    """Return the position of each pair among the entries, or -1."""
    if not len(entries):
        return np.full(len(pairs), -1, np.intp)
    order = np.argsort(entries, kind="stable")
    ordered = entries[order]
    places = np.minimum(np.searchsorted(ordered, pairs), len(entries) - 1)
    return np.where(ordered[places] == pairs, order[places], -1)
