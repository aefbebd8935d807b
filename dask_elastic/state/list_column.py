"""One declared list, for all keys of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.expiry.times import BatchTimes, Times
from dask_elastic.state.layout import unexpired_part
from dask_elastic.state.slots import Column
from dask_elastic.state.stored_values import Known, Values, dtype_of, to_arrow, to_python, to_stored
from dask_elastic.state.value_column import Load, require_mask
from dask_elastic.topology.aggregates.ragged import Ragged
from dask_elastic.topology.state_kind import Element, List
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.errors import StateError, StateValueError


class ListColumn:
    """The lists of a batch's keys, for vectorised logic; made by `StateView.list`.

    Parameters
    ----------
    name : str
        The declared name, for error messages.
    kind : List
        The declared kind.
    ordinals : ndarray of intp
        For each row of the batch, the position of its key in `state.keys`.
    count : int
        The number of keys.
    times : BatchTimes
        The batch's times.
    load : callable
        Reads the list's fields from the store.

    Notes
    -----
    Changes become state when the logic has returned for the whole batch. With a time to live, each element expires
    that long after it was appended.

    Examples
    --------
    >>> import dask_elastic as de
    >>> from dask_elastic.testing import run
    >>> def remember(batch, state):
    ...     state.list("values").append(batch["value"])
    ...     state.list("values").keep_newest(2)
    >>> topology = de.Topology("recent")
    >>> table = pa.table({"key": ["a", "b", "a", "a"], "value": [1, 2, 3, 4]})
    >>> rows = topology.source("rows", de.sources.Arrow(table)).key_by("key")
    >>> stream = rows.compute(remember, state={"values": de.List(pa.int64())}, name="remember")
    >>> sorted((row["key"], row["values"]) for row in run(topology).state["remember"].to_pylist())
    [('a', [3, 4]), ('b', [2])]
    """

    def __init__(
        self, name: str, kind: List, ordinals: npt.NDArray[np.intp], count: int, times: BatchTimes, load: Load
    ) -> None:
        self.name = name
        self.kind = kind
        self._ordinals = ordinals
        self._count = count
        self.times = times
        self._load = load
        self._current: list[Ragged] | None = None
        self._changed = False

    def _parts(self) -> list[Ragged]:
        """Return the elements and, with a time to live, their expiry times."""
        if self._current is None:
            self._current = list(unexpired_part(self.kind, self._load(), self.times.expired(self.kind)))
        return self._current

    def get(self) -> pa.ListArray:
        """Return the lists.

        Returns
        -------
        ListArray
            One list per key of `state.keys`; elements declared `object` are pickled.

        Examples
        --------
        >>> def spans(batch, state):
        ...     lists = state.list("values").get()
        ...     return state.keys.append_column("values", lists)
        """
        lists = self._parts()[0]
        return pa.ListArray.from_arrays(
            array_of(lists.offsets.astype(np.int32)), to_arrow(lists.values, self.kind.type)
        )

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of elements of each key's list.

        Returns
        -------
        ndarray of int64
            One length per key of `state.keys`.

        Examples
        --------
        >>> def full(batch, state):
        ...     return state.keys.filter(pa.array(state.list("values").lengths >= 10))
        """
        return self._parts()[0].lengths

    def append(self, values: Any, where: Any = None) -> None:
        """Append each row's value to the list of its key.

        Parameters
        ----------
        values : array-like
            One element per row of the batch; an element that is appended must not be null.
        where : array of bool, optional
            The rows whose elements are appended; all by default.

        Raises
        ------
        StateError
            If the length does not fit.
        StateValueError
            If the type does not fit, or an appended value is null.

        Examples
        --------
        >>> def remember(batch, state):
        ...     values = batch["value"].to_numpy()
        ...     state.list("large").append(values, where=values > 100)
        """
        stored, known = stored_elements(values, self.kind.type, self.name)
        if len(stored) != len(self._ordinals):
            raise StateError(
                f"state list {self.name!r}: {len(stored)} values for {len(self._ordinals)} rows; give one per row"
            )
        ordinals = self._ordinals
        until = None if self.kind.ttl is None else self.times.of_rows(self.kind)
        if where is not None:
            chosen = require_mask(where, len(ordinals), self.name, "row")
            stored, known, ordinals = stored[chosen], known[chosen], ordinals[chosen]
            until = None if until is None else until[chosen]
        require_known(known, f"state list {self.name!r}")
        self.append_at(stored, ordinals, until)

    def append_at(self, stored: Values, ordinals: npt.NDArray[np.intp], until: Times | None) -> None:
        """Append elements in stored form, in order, to the lists of the keys at the given positions.

        With a time to live, `until` says when each expires.
        """
        more = [Ragged.grouped(one, ordinals, self._count) for one in (stored, until) if one is not None]
        self._change([part.joined(new) for part, new in zip(self._parts(), more, strict=True)])

    def set(self, lists: Any, where: Any = None) -> None:
        """Replace lists.

        Parameters
        ----------
        lists : ListArray or sequence of sequences
            One list per key of `state.keys`, without null elements. A null in place of a list is an empty list.
        where : array of bool, optional
            The keys whose lists are replaced; all by default.

        Raises
        ------
        StateError
            If the length does not fit.
        StateValueError
            If the type does not fit, or an element is null.

        Examples
        --------
        >>> def sort(batch, state):
        ...     state.list("values").set([sorted(values) for values in state.list("values").get().to_pylist()])
        """
        new = ragged_of(lists, self.kind.type, self.name)
        if len(new) != self._count:
            raise StateError(
                f"state list {self.name!r}: {len(new)} lists for {self._count} keys; give one per key of state.keys"
            )
        parts = [new]
        if self.kind.ttl is not None:
            parts.append(Ragged(np.repeat(self.times.of_keys(self.kind), new.lengths), new.offsets))
        self.replace(parts, None if where is None else require_mask(where, self._count, self.name))

    def replace(self, parts: Sequence[Ragged], where: Known | None) -> None:
        """Replace lists given in stored form (with expiry times if there is a time to live), of all keys or some."""
        if where is None:
            self._change(list(parts))
        else:
            self._change([old.replaced(where, new) for old, new in zip(self._parts(), parts, strict=True)])

    def keep_newest(self, most: int) -> None:
        """Remove all but the last elements of each list.

        Parameters
        ----------
        most : int
            How many elements to keep per list, at most.

        Raises
        ------
        StateError
            If `most` is negative.

        Examples
        --------
        >>> def remember(batch, state):
        ...     state.list("values").append(batch["value"])
        ...     state.list("values").keep_newest(10)
        """
        if most < 0:
            raise negative_most(self.name, most)
        parts = self._parts()
        if len(parts[0].values) and int(parts[0].lengths.max()) > most:
            kept = parts[0].ranks_from_end() < most
            self._change([part.filtered(kept) for part in parts])

    def clear(self, where: Any = None) -> None:
        """Empty lists.

        Parameters
        ----------
        where : array of bool, optional
            The keys of `state.keys` whose lists are emptied; all by default.

        Raises
        ------
        StateError
            If `where` is not one boolean per key.

        Examples
        --------
        >>> def restart(batch, state):
        ...     state.list("values").clear(where=state.list("values").lengths >= 10)
        """
        mask = np.ones(self._count, np.bool_) if where is None else require_mask(where, self._count, self.name)
        self._change([part.filtered(~mask[part.owners]) for part in self._parts()])

    def python(self, position: int) -> tuple[list[Any], list[float]]:
        """Return one key's elements as Python objects, and their expiry times (empty without a time to live)."""
        lists, *expiries = self._parts()
        start, stop = int(lists.offsets[position]), int(lists.offsets[position + 1])
        elements = to_python(lists.values[start:stop], self.kind.type)
        return elements, expiries[0].values[start:stop].tolist() if expiries else []

    def _change(self, parts: list[Ragged]) -> None:
        self._current = parts
        self._changed = True

    def changes(self) -> Sequence[Column] | None:
        """Return the fields to write, or None if nothing has changed since the previous call."""
        changed, self._changed = self._changed, False
        return self._current if changed else None


def stored_elements(values: Any, kind: Element, name: str) -> tuple[Values, Known]:
    """Return elements in stored form and which are not null; raise StateValueError if they do not fit the type."""
    try:
        return to_stored(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise StateValueError(f"the state {name!r} is declared as {kind}: {error}") from error


def require_known(known: Known, what: str) -> None:
    """Raise StateValueError if a value is null."""
    if not known.all():
        raise StateValueError(
            f"{what}: row {int(np.argmin(known))} is null, and lists and maps hold no nulls; exclude such rows with "
            "where="
        )


def ragged_of(lists: Any, kind: Element, name: str) -> Ragged:
    """Return lists in stored form; raise StateValueError if they do not fit the type, or contain nulls."""
    if isinstance(lists, pa.ChunkedArray):
        lists = lists.combine_chunks()
    if isinstance(lists, pa.Array):
        if not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)):
            raise StateError(f"state list {name!r}: values of type {lists.type} are not lists; give one list per key")
        lengths = np.nan_to_num(numpy_of(lists.value_lengths())).astype(np.int64)
        elements: Any = lists.flatten()
    else:
        listed = [[] if values is None else list(values) for values in lists]
        lengths = np.array([len(values) for values in listed], np.int64)
        elements = [value for values in listed for value in values]
    stored, known = stored_elements(elements, kind, name)
    require_known(known, f"state list {name!r}")
    return Ragged.of_lengths(stored.astype(dtype_of(kind), copy=False), lengths)


def negative_most(name: str, most: int) -> StateError:
    """Return the error of `keep_newest` with a negative number."""
    return StateError(f"state list {name!r}: keep_newest({most}) is negative; give 0 or more")
